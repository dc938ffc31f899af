"""Tokenizers of transformers' kind, from the hub or a folder.

transformers imports torch, so one is fetched in a child process, which leaves two files:
tokenizer.json, and outcome.json, which says what came of it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rope_exp.config.sections import TokenizerConfig
from rope_exp.data.tokenizer import load_tokenizer
from rope_exp.system.errors import ConfigError, DataError
from rope_exp.system.processes import child_environment

FETCH_S = 600.0  # of the process that fetches, whatever holds it up
FETCH = "import sys; from rope_exp.data.pretrained import fetch; fetch(*sys.argv[1:])"


def pretrained_tokenizer(config: TokenizerConfig) -> tuple[Tokenizer, int]:
    """Fetch a pretrained tokenizer, such that it encodes bare text.

    Returns:
        The tokenizer, and the id that ends a document.
    Raises:
        ConfigError: tokenizer.path holds none that could be used.
        DataError: it could not be fetched.
    """

    def unusable(reason: str) -> ConfigError:
        return ConfigError("tokenizer.path", config.path, reason)

    name = str(config.path)
    path = Path(name).expanduser()
    if path.exists():
        name = str(path)
    elif name.startswith(("/", ".", "~")):
        raise unusable("there is no such folder")

    with tempfile.TemporaryDirectory(prefix="rope_exp-") as folder:
        outcome = _fetch_in_child(name, config.revision, folder)
        error = outcome.get("error")
        if error and path.exists():
            raise unusable(f"holds no tokenizer: {error}")
        if error and outcome["absent"]:
            raise unusable(error)
        if error:
            doing = "the tokenizer could not be fetched"
            raise DataError(f"tokenizer.path={config.path}: {doing}: {error}")

        if not outcome["fast"]:
            raise unusable("has no fast tokenizer, which is what is needed")
        if outcome["end_id"] is None:
            raise unusable("has no end-of-text token, which must end each document")
        tokenizer = load_tokenizer(Path(folder, "tokenizer.json"))

    # The file then means what the model was trained on: bare text.
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()

    for id_, token in tokenizer.get_added_tokens_decoder().items():
        if token.special and id_ in tokenizer.encode(token.content, add_special_tokens=False).ids:
            text = repr(token.content)
            raise unusable(f"reads the text {text} as a special token, even in documents")
    return tokenizer, outcome["end_id"]


def fetch(folder: str, path: str, revision: str) -> None:
    """Fetch a pretrained tokenizer into `folder`. Loads transformers, and so torch.

    Args:
        revision: empty for the newest.
    """
    from rope_exp.data.hub import Hub

    hub = Hub(sys.stdout)
    outcome: dict[str, object]
    try:
        from transformers import AutoTokenizer

        found = AutoTokenizer.from_pretrained(
            path, revision=revision or None, trust_remote_code=False, use_fast=True
        )
        # transformers does without a file that it could not get.
        hub.check()

        backend = getattr(found, "backend_tokenizer", None)
        if backend is not None:
            Path(folder, "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
        outcome = {"end_id": found.eos_token_id, "fast": backend is not None}
    except BaseException as error:
        # Whatever it is (a panic of the tokenizers library is no Exception), the parent says it
        # in one sentence.
        said, absent = hub.judge(error)
        outcome = {"error": said, "absent": absent}

    Path(folder, "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")


def _fetch_in_child(path: str, revision: str | None, folder: str) -> dict[str, Any]:
    """Run `fetch` in a process of its own, and return its outcome, or that of its death."""
    try:
        # What it says of its patience is heard; its standard error holds the libraries' talk.
        subprocess.run(
            [sys.executable, "-c", FETCH, folder, path, revision or ""],
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=subprocess.DEVNULL,
            timeout=FETCH_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        said = f"it took longer than {FETCH_S:g} s; the same command tries again"
    except subprocess.CalledProcessError as error:
        said = f"its process ended with {error.returncode}"
    else:
        return dict(json.loads(Path(folder, "outcome.json").read_text(encoding="utf-8")))
    return {"error": said, "absent": False}
