"""Upload of an exported model to the Hugging Face hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from rope_exp.system.errors import ConfigError, DataError, first_line


def check_name(repository: str) -> None:
    """Refuse what is no OWNER/NAME.

    Raises:
        ConfigError: naming it.
    """
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError("--push", repository, first_line(error)) from None
    if "/" not in repository:
        raise ConfigError("--push", repository, "must be OWNER/NAME")


def push(folder: Path, repository: str) -> str:
    """Upload a folder as a model, and return the address of the commit.

    Raises:
        DataError: the hub did not take it; the folder stays as it is.
    """
    api = HfApi()
    try:
        api.create_repo(repository, exist_ok=True)
        done = api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:
        # Every layer below raises its own kinds.
        raise DataError(
            f"--push={repository}: the hub did not take it: {first_line(error)}; {folder} is "
            f"complete: `hf upload {repository} {folder}` tries again"
        ) from None
    return str(done.commit_url)
