"""Text to token ids. Whatever its origin, a tokenizer ends as one file of the `tokenizers` library.

Every document is encoded as plain text, without special tokens: not even the text "<|endoftext|>" in a document gives
the end-of-text id, which the blocks put after each document.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from rope_exp.config.sections import TokenizerConfig
from rope_exp.system.errors import ConfigError, DataError, first_line
from rope_exp.system.processes import child_environment

TokenType = type[np.uint16] | type[np.uint32]
END_OF_TEXT = "<|endoftext|>"
PIECE_CHARS = 1 << 16  # a longer document is encoded in pieces, for flat memory and even work
CUT = re.compile(r"(?<=\S)(?=[ \n])")  # where the byte-level pre-tokenizer always cuts
FETCH_S = 600.0  # of the process that fetches a pretrained tokenizer, whatever holds it up
TOKENIZER_SUFFIXES = (".json", ".txt", ".model", ".tiktoken", ".jinja")


def build_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> tuple[Tokenizer, int]:
    """Make the tokenizer of a config.

    Args:
        texts: the training documents; bpe reads as many as tokenizer.train_bytes asks for, the others none.
    Returns:
        The tokenizer, and the id that ends a document.
    Raises:
        ConfigError: see each kind. DataError: a pretrained one cannot be fetched.
    """
    if config.kind == "pretrained":
        return _pretrained(config)
    tokenizer = train_bpe(config, texts) if config.kind == "bpe" else byte_tokenizer()
    return tokenizer, end_of_text_id(tokenizer)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read a tokenizer.json such that it encodes any text as plain text (a setting that the file does not keep).

    Raises:
        DataError: it is no tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # the library's plain Exception, or its panic, which is no Exception
        raise DataError(f"{path} cannot be read as a tokenizer: {first_line(error)}") from None
    tokenizer.encode_special_tokens = True
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """One token a byte of UTF-8: the id is the byte; 256 ends a text."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return tokenizer


def train_bpe(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn a byte-level BPE from the first tokenizer.train_bytes bytes of `texts` (to the end of the document).

    Raises:
        ConfigError: the text has too few different pairs for tokenizer.vocab_size tokens.
    """
    assert config.vocab_size is not None
    assert config.train_bytes is not None
    # Every merge needs a pair of neighbours, so this many tokens are out of reach; the trainer would reserve memory.
    if config.vocab_size > config.train_bytes + 257:
        raise ConfigError(
            "tokenizer.vocab_size",
            config.vocab_size,
            f"cannot be reached with tokenizer.train_bytes={config.train_bytes}",
        )
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=_byte_symbols(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_limited(texts, config.train_bytes), trainer)
    reached = tokenizer.get_vocab_size()
    if reached < config.vocab_size:
        raise ConfigError(
            "tokenizer.vocab_size",
            config.vocab_size,
            f"the corpus yields only {reached} tokens; choose at most that many, or a larger corpus",
        )
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """The id of <|endoftext|> in a tokenizer made here."""
    id_ = tokenizer.token_to_id(END_OF_TEXT)
    assert id_ is not None
    return id_


def vocab_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id (a pretrained vocabulary may have holes)."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def token_dtype(size: int) -> TokenType:
    """The narrowest type that holds every id of a vocabulary.

    Raises:
        ConfigError: 32 bits are too few.
    """
    if size > 2**32:
        raise ConfigError("tokenizer.vocab_size", size, "must be at most 2^32")
    return np.uint16 if size <= 2**16 else np.uint32


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
    """The ids of each text, on all cores (unless TOKENIZERS_PARALLELISM=false)."""
    can_cut = cuts_at_spaces(tokenizer)
    parts = [list(pieces(text, PIECE_CHARS)) if can_cut else [text] for text in texts]
    encodings = iter(
        tokenizer.encode_batch_fast(list(chain.from_iterable(parts)), add_special_tokens=False)
    )
    ids = (
        [np.array(encoding.ids, dtype=np.uint32) for encoding in islice(encodings, len(of_one))]
        for of_one in parts
    )
    return [of_one[0] if len(of_one) == 1 else np.concatenate(of_one) for of_one in ids]


def pieces(text: str, limit: int) -> Iterator[str]:
    """Cut a text where the byte-level pre-tokenizer cuts anyway, so that its pieces encode to what the whole does.

    Its pattern (GPT-2's) has no token in which a space or newline follows anything but space, so each piece begins with
    the first space or newline that follows other text after `limit` characters.
    """
    start = 0
    while (found := CUT.search(text, start + limit)) is not None:
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


def tokenizer_fingerprint(config: TokenizerConfig) -> dict[str, object]:
    """What the tokens depend on: the config without its name, and the contents of a local pretrained folder."""
    values: dict[str, object] = {
        "kind": config.kind,
        "vocab_size": config.vocab_size,
        "train_bytes": config.train_bytes,
    }
    if config.path is None:
        return values
    folder = Path(config.path).expanduser()
    if not folder.is_dir():
        return values | {"path": config.path, "revision": config.revision}
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in TOKENIZER_SUFFIXES:
            digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return values | {"files_sha256": digest.hexdigest()}


def save_pretrained(path: str, revision: str | None, folder: str) -> None:
    """Fetch a pretrained tokenizer into `folder`: tokenizer.json and outcome.json. Loads transformers, and so torch."""
    from rope_exp.data.hub import Hub

    hub = Hub.connect(sys.stdout)
    outcome: dict[str, object]
    try:
        from transformers import AutoTokenizer

        found = AutoTokenizer.from_pretrained(
            path, revision=revision, trust_remote_code=False, use_fast=True
        )
        hub.check()  # transformers does without a file that it could not get
        backend = getattr(found, "backend_tokenizer", None)
        if backend is not None:
            Path(folder, "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
        outcome = {"end_id": found.eos_token_id, "fast": backend is not None}
    except Exception as error:  # whatever it is, the parent says it in one sentence
        said, absent = hub.judge(error)
        outcome = {"error": said, "absent": absent}
    Path(folder, "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")


def _pretrained(config: TokenizerConfig) -> tuple[Tokenizer, int]:
    """A tokenizer of transformers' kind, fetched in a child process, since transformers imports torch."""
    assert config.path is not None
    path = str(Path(config.path).expanduser())
    local = Path(path).exists()
    if not local and config.path.startswith(("/", ".", "~")):
        raise ConfigError("tokenizer.path", config.path, "there is no such folder")
    failed = f"tokenizer.path={config.path}: the tokenizer could not be fetched"
    code = "import json, sys; from rope_exp.data import tokenizer; tokenizer.save_pretrained(*json.loads(sys.argv[1]))"
    with tempfile.TemporaryDirectory(prefix="rope_exp-") as folder:
        arguments = json.dumps([path if local else config.path, config.revision, folder])
        try:
            child = subprocess.run(
                [sys.executable, "-c", code, arguments],
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what it says of its patience; its standard error holds the libraries' talk
                stderr=subprocess.PIPE,
                timeout=FETCH_S,
            )
        except subprocess.TimeoutExpired:
            raise DataError(
                f"{failed}: it took longer than {FETCH_S:g} s; the same command tries again"
            ) from None
        if child.returncode:
            raise DataError(f"{failed}: {_last_line(child.stderr)}")
        outcome = json.loads(Path(folder, "outcome.json").read_text(encoding="utf-8"))
        if "error" in outcome:
            if local:
                raise ConfigError(
                    "tokenizer.path", config.path, f"holds no tokenizer: {outcome['error']}"
                )
            if outcome["absent"]:
                raise ConfigError("tokenizer.path", config.path, outcome["error"])
            raise DataError(f"{failed}: {outcome['error']}")
        if not outcome["fast"]:
            raise ConfigError(
                "tokenizer.path", config.path, "has no fast tokenizer, which is what is needed"
            )
        if outcome["end_id"] is None:
            raise ConfigError(
                "tokenizer.path",
                config.path,
                "has no end-of-text token, which must end each document",
            )
        tokenizer = load_tokenizer(Path(folder, "tokenizer.json"))
    tokenizer.post_processor = None  # the file then means what the model was trained on: bare text
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for id_, token in tokenizer.get_added_tokens_decoder().items():
        if token.special and id_ in tokenizer.encode(token.content, add_special_tokens=False).ids:
            raise ConfigError(
                "tokenizer.path",
                config.path,
                f"reads the text {token.content!r} as a special token, even in documents",
            )
    return tokenizer, outcome["end_id"]


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _byte_symbols() -> list[str]:
    """The character that stands for each byte in byte-level BPE: itself where printable, else one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    stand_in = {byte: 256 + place for place, byte in enumerate(others)}
    return [chr(stand_in.get(byte, byte)) for byte in range(256)]


def cuts_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether `pieces` cuts a text where this tokenizer does anyway."""
    first = tokenizer.pre_tokenizer
    return (
        isinstance(first, pre_tokenizers.ByteLevel)
        and first.use_regex
        and not first.add_prefix_space
        and tokenizer.normalizer is None
        and all(token.special for token in tokenizer.get_added_tokens_decoder().values())
    )


def _limited(texts: Iterable[str], num_bytes: int) -> Iterator[str]:
    """Pieces of the texts until num_bytes are reached; small ones, since the trainer buffers 256 of them."""
    for text in texts:
        for piece in pieces(text, PIECE_CHARS):
            yield piece
            num_bytes -= len(piece.encode())
        if num_bytes <= 0:
            return


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
