"""The Hugging Face hub: commits of data and tokenizers, pretrained tokenizers, its errors."""

import functools
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer, models

from rope_exp.errors import ConfigError, DataError, first_line, log
from rope_exp.files import files_sha256
from rope_exp.sections import DataConfig, TokenizerConfig

SILENCE_SECONDS = 15.0  # of the hub, before a line says so
# The files of a tokenizer on the hub or in a folder.
TOKENIZER_SUFFIXES = (".json", ".txt", ".model", ".tiktoken", ".jinja")
# The file among them that names the token that ends a text, and an example of its content.
TOKENIZER_CONFIG = "tokenizer_config.json"
EXAMPLE_CONFIG = """such as {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}"""


def pin(data: DataConfig, tokenizer: TokenizerConfig) -> tuple[DataConfig, TokenizerConfig]:
    """Return both configs with the commits that their revisions name now."""
    if data.kind == "hub":
        revision = newest_commit("data.path", data.path, data.revision, "dataset")
        data = replace(data, revision=revision)
    path = tokenizer.path
    if path is not None and not Path(path).expanduser().is_dir():
        _check_repository("tokenizer.path", path)
        revision = newest_commit("tokenizer.path", path, tokenizer.revision, "model")
        tokenizer = replace(tokenizer, revision=revision)
    return data, tokenizer


def _check_repository(key: str, path: str) -> None:
    """Refuse a path, not of a folder, that cannot be the name of a repository on the hub."""
    local = Path(path).expanduser()
    if local.is_file():
        raise ConfigError(key, path, f"is a file; name its folder, {local.parent}")
    if not re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", path):
        reason = "there is no such folder, and a repository on the hub is OWNER/NAME"
        raise ConfigError(key, path, reason)


@functools.cache
def newest_commit(key: str, path: str, revision: str | None, repo_type: str) -> str:
    """Return the commit that a revision names now; later calls of this process return the same.

    Args:
        key: the config key that gave the path, for errors.
        path: OWNER/NAME.
        revision: a branch, a tag or a commit; None: the default branch.
        repo_type: dataset or model.
    Raises:
        ConfigError: the hub has no such repository or revision.
        DataError: the hub does not answer.
    """
    if revision is not None and re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    with refuse_load_errors(key, path, from_hub=True), noting_silence(key, path):
        # Without a timeout, the library waits for ever; this one is 10 s, or the environment's.
        info = HfApi().repo_info(
            path, revision=revision, repo_type=repo_type, timeout=HF_HUB_DOWNLOAD_TIMEOUT
        )
        return str(info.sha)


def tokenizer_state(config: TokenizerConfig) -> dict[str, Any]:
    """Return plain values that change with a pretrained tokenizer."""
    folder = Path(str(config.path)).expanduser()
    if not folder.is_dir():
        return {"path": config.path, "revision": config.revision}
    files = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    used = {name: path for name, path in files.items() if name.endswith(TOKENIZER_SUFFIXES)}
    return {"files_sha256": files_sha256(used)}


def pretrained_tokenizer(config: TokenizerConfig) -> tuple[Tokenizer, int]:
    """Read a transformers tokenizer from a folder or the hub, set to encode plain text."""
    from transformers import AutoTokenizer

    path = str(config.path)
    folder = Path(path).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        # transformers itself skips a file that it cannot fetch, and would build another tokenizer.
        names = [f"*{suffix}" for suffix in TOKENIZER_SUFFIXES]
        errors_refused = refuse_load_errors("tokenizer.path", path, from_hub=True)
        with errors_refused, noting_silence("tokenizer.path", path):
            folder = Path(snapshot_download(path, revision=config.revision, allow_patterns=names))
    try:
        pretrained = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer = Tokenizer.from_str(pretrained.backend_tokenizer.to_str())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is not an Exception
        reason = f"cannot be read: {first_line(error)}"
        if (folder / "tokenizer.json").exists() and not (folder / TOKENIZER_CONFIG).exists():
            reason = (
                f"has a tokenizer.json without a {TOKENIZER_CONFIG}; write one, {EXAMPLE_CONFIG}"
            )
        raise ConfigError("tokenizer.path", path, reason) from None
    if pretrained.eos_token_id is None:
        reason = "has no end-of-text token, which must end each document; its "
        reason += f"{TOKENIZER_CONFIG} names it, {EXAMPLE_CONFIG}"
        raise ConfigError("tokenizer.path", path, reason)

    # The tokenizer then encodes plain text, which the model was trained on.
    tokenizer.encode_special_tokens = True
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        # BPE dropout would change the tokens, and so data_sha256, each time.
        tokenizer.model.dropout = None

    for id_, token in tokenizer.get_added_tokens_decoder().items():
        if token.special and id_ in encode(tokenizer, [token.content])[0].ids:
            reason = f"reads the text {token.content!r} as a special token, even in documents"
            if isinstance(tokenizer.model, models.Unigram):
                reason += ", as every Unigram tokenizer does; choose a BPE"
            raise ConfigError("tokenizer.path", path, reason)
    return tokenizer, pretrained.eos_token_id


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Encoding]:
    """Encode texts without special tokens; refuse a tokenizer that was read, but cannot do it."""
    try:
        return tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of the library is not an Exception
        reason = f"its tokenizer cannot encode a text: {first_line(error)}"
        raise ConfigError("tokenizer.path", ..., reason) from None


@contextmanager
def noting_silence(key: str, value: object) -> Iterator[None]:
    """Log a line if the block, which asks the hub, takes long: the libraries try for minutes."""
    line = f"{key}={value}: the hub has not answered for {SILENCE_SECONDS:g} s; still trying"
    timer = threading.Timer(SILENCE_SECONDS, log, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def refuse_load_errors(key: str, value: object, *, from_hub: bool = False) -> Iterator[None]:
    """Refuse a path that a library cannot read, in place of any error of the block.

    Args:
        key: the config key that gave the path, such as data.path.
        value: the path, here or on the hub.
        from_hub: the block asks the hub, which may fail although the path is right.
    Returns:
        A context; a ConfigError of its block passes unchanged.
    Raises:
        ConfigError: nothing can be read from the path.
        DataError: the hub does not answer; the same command may succeed later.
    """
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        from datasets.exceptions import DatasetNotFoundError
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        # A missing subset or an invalid Parquet file raises a ValueError.
        absent = (DatasetNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)
        if not from_hub or isinstance(error, (ValueError, *absent)):
            raise ConfigError(key, value, f"cannot be read: {first_line(error)}") from None
        reason = f"the hub did not give it: {first_line(error)}; the same command tries again"
        raise DataError(f"{key}={value}: {reason}") from None
