"""Uploads to the Hugging Face hub: models, data sets and Spaces."""

from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from rope_exp.system.errors import ConfigError, DataError, first_line


def check_name(flag: str, repository: str) -> None:
    """Refuse what is no OWNER/NAME.

    Raises:
        ConfigError: naming the flag and the name.
    """
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(flag, repository, first_line(error)) from None
    if "/" not in repository:
        raise ConfigError(flag, repository, "must be OWNER/NAME")


def push(
    folder: Path,
    repository: str,
    kind: Literal["model", "dataset", "space"] = "model",
    *,
    flag: str,
    again: str,
    ignored: str | None = None,
) -> str:
    """Upload a folder, and return the address of the commit.

    Args:
        flag: of the command line, which an error names.
        again: the command that tries again.
        ignored: a pattern of files that are not uploaded.
    Raises:
        DataError: the hub did not take it.
    """
    api = HfApi()
    sdk = "static" if kind == "space" else None
    try:
        api.create_repo(repository, repo_type=kind, space_sdk=sdk, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository, repo_type=kind, folder_path=folder, ignore_patterns=ignored
        )
    except Exception as error:
        # Every layer below raises its own kinds.
        raise DataError(
            f"{flag}={repository}: the hub did not take the {kind}: {first_line(error)}; `{again}` "
            "tries again"
        ) from None
    return str(done.commit_url)
