"""Tests of the hub, by commands against a stand-in on loopback, and of pretrained tokenizers."""

import hashlib
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import Done, assert_refused, command
from support.configs import REPOSITORY, left_in
from support.corpora import BPE, BYTES, TEXTS, data_config, tokenizer_config
from support.refused import refused
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rope_exp import hub as hub_module
from rope_exp.errors import ConfigError, DataError
from rope_exp.files import read_json
from rope_exp.hub import EXAMPLE_CONFIG, pin
from rope_exp.prepare import END_OF_TEXT, build_tokenizer, byte_tokenizer, prepare, train_bpe
from rope_exp.sections import DataConfig

TOKEN = "hf_thisMustNeverBeSeen"
# Every process of a command imports it. The libraries would wait for minutes.
IMPATIENT = "import time\nsleep = time.sleep\ntime.sleep = lambda s: sleep(min(s, 0.01))\n"
PATHS = re.compile(
    r"(?:/api)?/((?:(?:datasets|models)/)?[^/]+/[^/]+)(?:/(revision|tree|resolve)/\w+/?(.*))?"
)


class Hub:
    """A stand-in for the Hugging Face hub on localhost: repositories, their trees and files.

    `faults` are the HTTP status and error code of requests that match a regex.
    """

    revision = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.faults: dict[str, tuple[int, str]] = {}
        self.requests: list[str] = []
        handler = type("HubHandler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        for pattern, fault in self.faults.items():
            if re.search(pattern, f"{method} {path}"):
                return fault
        match = PATHS.fullmatch(unquote(urlsplit(path).path))
        assert match is not None, path
        name, kind, below = match.groups()
        files = self.repositories.get(name if name.count("/") == 2 else f"models/{name}")
        if files is None:
            # Without credentials, the real hub answers 401 for an unknown repository.
            return 401, "RepoNotFound"
        if kind == "resolve":
            return (200, files[below]) if below in files else (404, "EntryNotFound")
        if kind == "tree":
            facts = {"type": "file", "oid": "0" * 40}
            return 200, [{**facts, "path": name, "size": len(files[name])} for name in files]
        siblings = [{"rfilename": path} for path in files]
        return 200, {"id": name.partition("/")[2], "sha": self.revision, "siblings": siblings}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path} {self.headers['Authorization']}")
        status, body = self.hub.answer(self.command, self.path)
        headers = {"X-Repo-Commit": self.hub.revision}
        if isinstance(body, str):
            headers |= {"X-Error-Code": body, "X-Error-Message": body}
            body = b"{}"
        elif isinstance(body, bytes):
            headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
            if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or ""):
                status = 206
                body = body[int(part[1]) : int(part[2] or len(body)) + 1]
        else:
            body = json.dumps(body).encode()

        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET


def parquet(number: int) -> bytes:
    texts = [f"{n}. " + str(n**99) for n in range(100 * number, 100 * number + 100)]
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), file, row_group_size=30)
    return file.getvalue()


CORPUS = {f"train-0000{number}.parquet": parquet(number) for number in range(3)}
SETTINGS = b'{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}'
WORDS = {
    "config.json": b'{"model_type": "gpt2"}',
    "tokenizer.json": byte_tokenizer().to_str().encode(),
    "tokenizer_config.json": SETTINGS,
}
UNPINNED = (
    "data=hub",
    "data.path=owner/corpus",
    "data.holdout_fraction=0.1",
    "tokenizer=pretrained",
    "tokenizer.path=owner/words",
)
PINNED = (*UNPINNED, f"data.revision={Hub.revision}", f"tokenizer.revision={Hub.revision}")

Run = Callable[..., Done]


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub({"datasets/owner/corpus": CORPUS, "models/owner/words": WORDS})
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    """Return a function that runs a command against the hub, and finds a leaked token."""
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": TOKEN,
        "NO_PROXY": "*",
        "PYTHONPATH": f"{tmp_path}:{REPOSITORY}",
    }

    def run(*words: str, script: str = "prepare") -> Done:
        done = command(*words, cwd=tmp_path, script=script, **environment)
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(TOKEN.encode() in content for content in [repr(done).encode(), *files])
        return done

    return run


def test_the_hub_gives_the_tokens_of_local_files_and_once(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
    """A branch names a commit, whose corpus is prepared once; a branch that moves is another."""
    (tmp_path / "local").mkdir()
    for name, content in CORPUS.items():
        (tmp_path / "local" / name).write_bytes(content)
    data = data_config(path=tmp_path / "local", cache_dir=str(tmp_path / "other"))
    local = prepare(data, BYTES).data_sha256
    assert local in run(*UNPINNED).stdout
    # The token was sent; otherwise the check that it never leaks could not fail.
    assert any(f"Bearer {TOKEN}" in request for request in hub.requests)
    hub.requests.clear()
    assert local in run(*PINNED).stdout
    assert hub.requests == []
    [folder] = left_in(tmp_path / "cache")
    facts = read_json(tmp_path / "cache" / folder / "meta.json")["corpus"]
    assert facts["revision"] == Hub.revision

    hub.revision = "f" * 40
    assert local in run(*UNPINNED, "data.revision=main").stdout
    assert len(left_in(tmp_path / "cache")) == 2


NONE = "the hub did not give it: "
# Prepares for each list of words, in one process, because imports take most of the time.
EACH = """
import json, sys
from rope_exp.errors import run_command
from rope_exp.commands.prepare import main

print([run_command(lambda: main(words)) for words in json.loads(sys.argv[1])])
"""


def test_a_fault_or_a_mistake_is_one_sentence(hub: Hub, run: Run, tmp_path: Path) -> None:
    owned = {"datasets/owner/down": CORPUS, "datasets/owner/half": CORPUS}
    hub.repositories = {**hub.repositories, **owned, "models/owner/part": WORDS}
    # transformers itself would skip the last file, and build another tokenizer.
    faults = ("owner/down", "GET .*owner/half.*train-00001", "owner/part.*tokenizer_config")
    hub.faults = dict.fromkeys(faults, (503, ""))
    cases = [
        ((*UNPINNED, "data.path=owner/down"), f"data.path=owner/down: {NONE}"),
        ((*PINNED, "data.path=owner/half"), f"data.path=owner/half: {NONE}"),
        ((*PINNED, "tokenizer.path=owner/part"), f"tokenizer.path=owner/part: {NONE}"),
        ((*PINNED, "data.path=owner/none"), "data.path=owner/none: cannot be read: "),
        ((*PINNED, "data.subset=none"), "data.path=owner/corpus: cannot be read: "),
        ((*PINNED, "tokenizer.path=owner/none"), "tokenizer.path=owner/none: cannot be read"),
    ]
    (tmp_path / "each.py").write_text(EACH)
    done = run(json.dumps([words for words, _ in cases]), script=str(tmp_path / "each.py"))
    assert done.stdout.splitlines()[-1] == "[1, 1, 1, 2, 2, 2]"
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for line, (_, sentence) in zip(said, cases, strict=True):
        assert line.startswith(f"error: {sentence}")
    assert left_in(tmp_path / "cache") == []


def test_the_library_s_cache_is_not_read_where_the_hub_refuses(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "load.py").write_text("import datasets\ndatasets.load_dataset('owner/corpus')\n")
    assert run(script=str(tmp_path / "load.py")).returncode == 0
    hub.faults = {"datasets": (401, "RepoNotFound")}
    assert_refused(run(*PINNED), "data.path=owner/corpus: ")


# -- pretrained tokenizers in a folder -------------------------------------------------------------


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(BPE, TEXTS)


def build(path: Path | str) -> Any:
    return build_tokenizer(tokenizer_config("pretrained", path=str(path)), [])


def save_as_transformers_does(tokenizer: Tokenizer, folder: Path, **settings: str) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_pretrained_tokenizer_keeps_its_ids(bpe: Tokenizer, tmp_path: Path) -> None:
    """A text has the same tokens each time: the stored file asks for no dropout."""
    values = json.loads(bpe.to_str())
    values["model"]["dropout"] = 0.3
    random = Tokenizer.from_str(json.dumps(values))
    folder = save_as_transformers_does(random, tmp_path / "random", eos_token=END_OF_TEXT)
    tokenizer, end_id = build(folder)
    assert end_id == bpe.token_to_id(END_OF_TEXT)
    text = " ".join(TEXTS) + f"naïve {END_OF_TEXT} text"
    assert tokenizer.encode(text, add_special_tokens=False).ids == bpe.encode(text).ids
    assert json.loads(tokenizer.to_str())["model"]["dropout"] is None


def test_a_pretrained_tokenizer_that_cannot_be_used_is_refused(
    bpe: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word-level model finds "</s>" in its vocabulary in spite of encode_special_tokens."""
    with refused("tokenizer.path=", "nowhere: cannot be read", by=ConfigError):
        build(tmp_path / "nowhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with refused("tokenizer.path=nobody/nothing: the hub did not give it", by=DataError):
        build("nobody/nothing")

    folder = save_as_transformers_does(bpe, tmp_path / "endless")
    with refused("endless: has no end-of-text token", '"eos_token": "</s>"', by=ConfigError):
        build(folder)
    (folder / "tokenizer_config.json").unlink()
    # Whether transformers reads the one file depends on the folder's name.
    with refused("tokenizer_config.json", '"eos_token": "</s>"', by=ConfigError):
        build(folder)
    # The sentence gives a file that is enough.
    (folder / "tokenizer_config.json").write_text(
        EXAMPLE_CONFIG.removeprefix("such as ").replace("</s>", END_OF_TEXT)
    )
    assert build(folder)[1] == bpe.token_to_id(END_OF_TEXT)
    for path, reason in (
        (folder / "tokenizer.json", f"is a file; name its folder, {folder}"),
        (tmp_path / "nowhere", "there is no such folder, and a repository"),
    ):
        with refused(f"tokenizer.path={path}: {reason}", by=ConfigError):
            pin(DataConfig(), tokenizer_config("pretrained", path=str(path)))

    words = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Fuse()
    words.add_special_tokens(["</s>"])
    folder = save_as_transformers_does(words, tmp_path / "words", eos_token="</s>")
    with refused("reads the text '</s>' as a special token", by=ConfigError):
        build(folder)

    pieces = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0)], unk_id=0))
    pieces.add_special_tokens(["</s>"])
    folder = save_as_transformers_does(pieces, tmp_path / "pieces", eos_token="</s>")
    with refused("as every Unigram tokenizer does; choose a BPE", by=ConfigError):
        build(folder)


HOSTILE: list[tuple[dict[str, Any], str]] = [
    # Read, and then an exception of the library, a panic of it, and no token for any text.
    ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}, "cannot encode a text"),
    (
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
        "cannot encode a text",
    ),
    (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": ""}},
        "encodes every document to no token",
    ),
]


@pytest.mark.parametrize(("values", "words"), HOSTILE, ids=["error", "panic", "empty"])
def test_a_tokenizer_that_cannot_encode_is_refused(
    tmp_path: Path, empty_cache: Path, values: dict[str, Any], words: str
) -> None:
    """Somebody else's tokenizer.json can be read, and fail at the first text."""
    folder = save_as_transformers_does(byte_tokenizer(), tmp_path / "hostile", eos_token="</s>")
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | values))
    (tmp_path / "texts").mkdir()
    for number in range(30):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number}")
    data = data_config(path=tmp_path / "texts", holdout_fraction=0.5)
    with refused("tokenizer.path", words, by=ConfigError):
        prepare(data, tokenizer_config("pretrained", path=str(folder)))
    assert left_in(empty_cache) == []


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_hub_that_never_answers_is_not_waited_for(silent: str, tmp_path: Path) -> None:
    """The libraries have no timeout for the question after a branch's commit."""
    done = command(
        "data=hub",
        "data.path=owner/corpus",
        cwd=tmp_path,
        script="prepare",
        HF_ENDPOINT=silent,
        HF_HOME=str(tmp_path / "home"),
        HF_HUB_DOWNLOAD_TIMEOUT="1",
        NO_PROXY="*",
    )
    assert done.returncode == 1
    assert f"error: data.path=owner/corpus: {NONE}timed out" in done.stderr


def test_silence_of_the_hub_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub_module, "SILENCE_SECONDS", 0.05)
    with hub_module.noting_silence("data.path", "owner/corpus"):
        time.sleep(0.5)
    line = "data.path=owner/corpus: the hub has not answered for 0.05 s; still trying\n"
    assert capsys.readouterr().err == line
    with hub_module.noting_silence("data.path", "owner/corpus"):
        pass
    time.sleep(0.2)
    assert capsys.readouterr().err == ""
