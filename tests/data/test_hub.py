"""Tests of the hub: commands in processes of their own, against a stand-in on loopback."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import Done, assert_refused, command
from support.configs import REPOSITORY, TINY, left_in
from support.corpora import BYTES, data_config
from support.hub import Hub

from rope_exp.files import read_json
from rope_exp.prepare import prepare
from rope_exp.tokenizer import END_OF_TEXT, byte_tokenizer

TOKEN = "hf_thisMustNeverBeSeen"
# Every process of a command imports it. The libraries would wait for minutes.
IMPATIENT = """
import time
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.01))
"""
CARD = b"""---
configs:
- config_name: plain
  data_files:
  - {split: train, path: "data/train-*"}
  - {split: validation, path: "data/validation-*"}
---
"""


def parquet(start: int, stop: int) -> bytes:
    texts = [f"{n}. " + " ".join(str(n * k * 7919 % 10007) for k in range(40)) for n in range(300)]
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts[start:stop]}), file, row_group_size=30)
    return file.getvalue()


CORPUS = {
    **{f"data/train-{n:05d}-of-00003.parquet": parquet(100 * n, 100 * n + 100) for n in range(3)},
    "data/validation-00000-of-00001.parquet": parquet(0, 50),
}
SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT}
WORDS = {
    "config.json": b'{"model_type": "gpt2"}',
    "tokenizer.json": byte_tokenizer().to_str().encode(),
    "tokenizer_config.json": json.dumps(SETTINGS).encode(),
}
UNPINNED = ("data=hub", "data.path=owner/corpus", "data.subset=plain")
UNPINNED += ("tokenizer=pretrained", "tokenizer.path=owner/words")
PINNED = (*UNPINNED, f"data.revision={Hub.revision}", f"tokenizer.revision={Hub.revision}")
QUICK = (*(word for word in TINY if not word.startswith(("data=", "tokenizer="))), "run.dir=run")

Run = Callable[..., Done]


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Yield a hub with one corpus and one tokenizer."""
    hub = Hub({"datasets/owner/corpus": {"README.md": CARD, **CORPUS}, "models/owner/words": WORDS})
    yield hub
    hub.stop()


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    """Return a function that runs a command against the hub, and finds a leaked token."""
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "HF_TOKEN": TOKEN,
        "NO_PROXY": "*",
        "PYTHONPATH": f"{tmp_path}:{REPOSITORY}",
    }

    def run(*words: str, script: str = "prepare") -> Done:
        done = command(*words, cwd=tmp_path, script=script, **environment)
        assert TOKEN not in done.stdout + done.stderr
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
        return done

    return run


@pytest.fixture
def local(tmp_path: Path) -> str:
    """Return the digest of the corpus of the hub, prepared from files here."""
    for name, content in CORPUS.items():
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_bytes(content)
    data = data_config(path=tmp_path / "local", cache_dir=str(tmp_path / "other"))
    return prepare(data, BYTES).data_sha256


def test_the_hub_gives_the_tokens_of_local_files_and_once(
    hub: Hub, run: Run, tmp_path: Path, local: str
) -> None:
    assert local in run(*PINNED).stdout
    # The token was sent; otherwise the checks that it never leaks could not fail.
    assert f"Bearer {TOKEN}" in hub.authorizations
    hub.requests.clear()
    done = run(*PINNED, *QUICK, script="train.py")
    assert done.returncode == 0, done
    assert read_json(tmp_path / "run" / "result.json")["data_sha256"] == local
    assert hub.requests == []


def test_a_revision_that_is_no_commit_becomes_one(
    hub: Hub, run: Run, tmp_path: Path, local: str
) -> None:
    """The folder is that of the pinned corpus, and a branch that has moved is another corpus."""
    assert local in run(*UNPINNED).stdout
    assert local in run(*PINNED).stdout
    [folder] = left_in(tmp_path / "cache")
    facts = read_json(tmp_path / "cache" / folder / "meta.json")["corpus"]
    assert facts["revision"] == Hub.revision

    hub.revision = "f" * 40
    assert local in run(*UNPINNED, "data.revision=main").stdout
    assert len(left_in(tmp_path / "cache")) == 2

    # Only the hub knows which commit a branch names.
    hub.stop()
    done = run(*UNPINNED)
    assert done.returncode == 1
    assert "error: data.path=owner/corpus: the hub did not give it: " in done.stderr
    assert local in run(*PINNED).stdout


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("GET .*train-00001", "data.path=owner/corpus: the hub did not give it: "),
        # transformers itself would skip the missing file, and build another tokenizer.
        ("words.*tokenizer_config", "tokenizer.path=owner/words: the hub did not give it: "),
    ],
)
def test_a_fault_of_the_hub_is_one_sentence(
    hub: Hub, run: Run, tmp_path: Path, local: str, place: str, words: str
) -> None:
    """Nothing is left behind, and the same command succeeds once the fault is gone."""
    hub.faults = {place: (503, "")}
    done = run(*PINNED)
    assert done.returncode == 1
    assert f"error: {words}" in done.stderr
    assert left_in(tmp_path / "cache") == []
    hub.faults = {}
    assert local in run(*PINNED).stdout


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.path=owner/none", ["data.path=owner/none: ", "doesn't exist"]),
        ("data.subset=none", ["data.path=owner/corpus: ", "'none' not found", "plain"]),
        ("tokenizer.path=owner/none", ["tokenizer.path=owner/none: cannot be read"]),
    ],
)
def test_a_mistake_is_one_sentence(
    override: str, words: list[str], run: Run, tmp_path: Path
) -> None:
    assert_refused(run(*PINNED, override), *words)
    assert left_in(tmp_path / "cache") == []


def test_the_library_s_cache_is_not_read_where_the_hub_refuses(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
    code = "import datasets\ndatasets.load_dataset('owner/corpus', 'plain')\n"
    (tmp_path / "load.py").write_text(code)
    assert run(script=str(tmp_path / "load.py")).returncode == 0
    hub.faults = {"datasets": (401, "RepoNotFound")}
    assert_refused(run(*PINNED), "data.path=owner/corpus: ")
