"""The hub fails in every way it can: real processes against a stand-in on loopback that misbehaves on demand."""

import io
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.configs import REPOSITORY, TINY
from support.hub import Fault, Hub, sha1

from rope_exp.config.compose import run_config
from rope_exp.data.prepare import prepare
from rope_exp.data.tokenizer import END_OF_TEXT, byte_tokenizer

TOKEN = "hf_thisMustNeverBeSeen"
CARD = b"""---
configs:
- config_name: plain
  data_files:
  - {split: train, path: "data/train-*"}
  - {split: validation, path: "data/validation-*"}
---
"""
SAID = {"hang": "silence for", "half": "peer closed connection", "short": r"\d+ bytes instead of"}
# Less patience, in every process of a command: each imports this file when it starts.
IMPATIENT = "import rope_exp.data.hub as hub\nhub.TIMEOUT_S, hub.FIRST_WAIT_S, hub.PATIENCE_S = 1.0, 0.01, 1.5\n"
NO_NETWORK = """
import os, socket

def refuse(*arguments, **options):
    with open(os.environ["SOCKETS"], "a") as file:
        print(arguments, file=file)
    raise OSError("no network in this test")

socket.getaddrinfo = socket.create_connection = refuse
socket.socket.connect = socket.socket.connect_ex = socket.socket.bind = socket.socket.sendto = refuse
"""


def parquet(texts: list[str], **options: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), file, **options)
    return file.getvalue()


TEXTS = [
    f"Document {n}. " + " ".join(str(n * k * 7919 % 10007) for k in range(40)) for n in range(300)
]
SHARDS = [parquet(TEXTS[start : start + 100], row_group_size=30) for start in (0, 100, 200)]
FIRST, SECOND, VALIDATION = (
    f"GET /files/{sha1(shard)} " for shard in (*SHARDS[:2], parquet(TEXTS[:50]))
)
CORPUS = {f"data/train-{n:05d}-of-00003.parquet": shard for n, shard in enumerate(SHARDS)} | {
    "data/validation-00000-of-00001.parquet": parquet(TEXTS[:50])
}
WORDS = {
    "config.json": b'{"model_type": "gpt2"}',
    "tokenizer.json": byte_tokenizer().to_str().encode(),
    "tokenizer_config.json": json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT}
    ).encode(),
}
HUB_DATA = (
    "data=wikitext103",
    "data.path=owner/corpus",
    "data.subset=plain",
    f"data.revision={Hub.revision}",
)
HUB_WORDS = (
    "tokenizer=pretrained",
    "tokenizer.path=owner/words",
    f"tokenizer.revision={Hub.revision}",
)


@dataclass(frozen=True)
class Done:
    """What a command came to.

    Attributes:
        retries: the lines that say that a request is repeated; other: the rest of standard error, without progress.
    """

    code: int
    sha256: str | None
    retries: list[str]
    other: list[str]
    seconds: float

    def fails(self, code: int, sentence: str) -> None:
        """It ended with one line that says why, and no traceback."""
        assert (self.code, len(self.other)) == (code, 1), self
        assert re.match(f"error: {sentence}", self.other[0]), self


Run = Callable[..., Done]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(
        {"datasets/owner/corpus": {"README.md": CARD, **CORPUS}, "models/owner/words": WORDS}
    ) as hub:
        yield hub


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    """Run a command of the project's against the stand-in; the user's token never comes out."""

    def run(*command: str, script: str = "scripts/prepare_data.py", site: str = IMPATIENT) -> Done:
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site" / "sitecustomize.py").write_text(site)
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("HF_")
        } | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN": TOKEN,
            "NO_PROXY": "*",
            "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{REPOSITORY}",
            "ROPE_EXP_CACHE": str(tmp_path / "cache"),
            "SOCKETS": str(tmp_path / "sockets"),
        }
        began = time.monotonic()
        child = subprocess.run(
            [sys.executable, str(REPOSITORY / script), *command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )
        seconds = time.monotonic() - began
        assert TOKEN not in child.stdout + child.stderr
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
        lines = child.stderr.splitlines()
        found = re.search(r"sha256: +(\w{64})", child.stdout)
        return Done(
            child.returncode,
            found[1] if found else None,
            [line for line in lines if line.startswith("hub: ")],
            [line for line in lines if not line.startswith(("hub: ", "data: "))],
            seconds,
        )

    return run


def prepared_from_files(files: Mapping[str, bytes], folder: Path) -> tuple[str, str]:
    """The override that names a folder of these files, and the digest of their tokens: no hub is needed for it."""
    for name, content in files.items():
        (folder / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "corpus" / name).write_bytes(content)
    path = f"data.path={folder / 'corpus'}"
    config = run_config(
        ["data=files", path, f"data.cache_dir={folder / 'cache'}", "tokenizer=bytes"]
    )
    return path, prepare(config.data, config.tokenizer).data_sha256


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return prepared_from_files(CORPUS, tmp_path_factory.mktemp("local"))


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != "locks"]


# -- all is well -------------------------------------------------------------------------------------------------------


def test_the_hub_gives_the_tokens_that_local_files_give_and_is_asked_once(hub, run, local):
    first = run(*HUB_DATA, "tokenizer=bytes")
    assert first.sha256 == local[1]
    assert first.other == []
    assert (
        f"Bearer {TOKEN}" in hub.authorizations
    )  # or the tests that it is never seen could not fail
    assert any("cursor=" in request for request in hub.requests)
    before = len(hub.requests)
    assert run(*HUB_DATA, "tokenizer=bytes").sha256 == local[1]
    assert hub.requests[before:] == []


def test_prepared_data_needs_no_network_at_all(hub, run, tmp_path):
    assert run(*HUB_DATA, *HUB_WORDS).code == 0
    hub.stop()
    tiny = [override for override in TINY if not override.startswith(("data=", "tokenizer="))]
    command = (*HUB_DATA, *HUB_WORDS, *tiny, "train.num_steps=3", f"run.dir={tmp_path / 'run'}")
    done = run(*command, script="train.py", site=NO_NETWORK)
    assert done.code == 0, done
    assert not (tmp_path / "sockets").exists(), (tmp_path / "sockets").read_text()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 3
    # The guard guards: a corpus that is not prepared is asked for, in vain.
    done = run(*HUB_DATA, "tokenizer=bytes", site=IMPATIENT + NO_NETWORK)
    done.fails(1, r"data\.path=owner/corpus: .*no network in this test")
    assert "127.0.0.1" in (tmp_path / "sockets").read_text()


# -- faults that pass --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [429, 408, 503, "hang", "half", "short"])
def test_a_fault_that_passes_changes_no_token_and_is_said(kind, hub, run, local):
    places = [FIRST, SECOND] if kind == "short" else ["GET .*README", "GET .*/tree/", FIRST, SECOND]
    hub.faults = [Fault(kind, place, times=1) for place in places]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == local[1], done
    assert done.other == []
    assert sum(
        bool(re.match(f"hub: {SAID.get(kind, kind)}", line)) for line in done.retries
    ) >= len(places), done
    assert not any(fault.times for fault in hub.faults)


def test_whatever_fails_in_whatever_order_no_document_is_missed_or_comes_twice(hub, run, local):
    chance = random.Random(0)
    kinds = [chance.choice([429, 408, 500, 502, 503, "half"]) for _ in range(30)]
    hub.faults = [Fault(kind, times=1, after=chance.randrange(60)) for kind in kinds]
    hub.faults += [
        Fault("short", "GET /files/", times=1, after=chance.randrange(4)) for _ in range(3)
    ]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == local[1], done
    assert len(done.retries) > 10


def test_a_shard_that_breaks_off_in_the_middle_goes_on_there(hub, run, tmp_path):
    # So large that it is asked for in parts, of which the later ones break.
    texts = [f"Document {n}. " + f"{n * 7919} " * 6000 for n in range(150)]
    shard = parquet(texts, row_group_size=10, compression="none", use_dictionary=False)
    assert len(shard) > 5_000_000
    files = {
        "data/train-00000-of-00001.parquet": shard,
        "data/validation-00000-of-00001.parquet": parquet(TEXTS),
    }
    hub.repositories = {"datasets/owner/corpus": {"README.md": CARD, **files}}
    hub.faults = [Fault(kind, r"/files/.* bytes=[1-9]", times=2) for kind in ("half", "short", 503)]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == prepared_from_files(files, tmp_path)[1]
    assert len(done.retries) >= 6


def test_a_hub_that_names_a_time_to_wait_is_given_it(hub, run, local):
    hub.faults = [Fault(429, FIRST, times=1, headers={"Retry-After": "1"})]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == local[1]
    assert re.search(r"429 Too Many Requests \(.*\); attempt 2 in 1\.0 s$", done.retries[0])


# -- faults that stay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "place"), [("hang", ""), (429, "/tree/"), ("half", SECOND), (500, VALIDATION)]
)
def test_a_fault_that_stays_is_one_sentence_within_bounds_and_the_same_command_tries_again(
    kind, place, hub, run, tmp_path, local
):
    hub.faults = [Fault(kind, place, headers={"Retry-After": "3600"} if kind == 429 else {})]
    done = run(*HUB_DATA, "tokenizer=bytes")
    done.fails(
        1,
        r"data\.path=owner/corpus: (the dataset could not be opened|reading stopped): the hub failed \d+ times in "
        rf"\d+ s, at last with {SAID.get(kind, kind)}.*; the same command tries again$",
    )
    attempts = int(re.search(r"failed (\d+) times", done.other[0])[1])
    assert len(done.retries) == attempts - 1 > 0
    assert sum(bool(re.search(place, request)) for request in hub.requests) == attempts
    assert done.seconds < 60  # of patience 1.5; the libraries' own would last minutes
    assert left_in(tmp_path / "cache") == []
    hub.faults = []
    assert run(*HUB_DATA, "tokenizer=bytes").sha256 == local[1]


def test_a_hub_that_is_not_there_fails_a_run_in_one_sentence(hub, run, tmp_path):
    hub.stop()
    tiny = [override for override in TINY if not override.startswith("data=")]
    done = run(*HUB_DATA, *tiny, f"run.dir={tmp_path / 'run'}", script="train.py")
    done.fails(1, r"data\.path=owner/corpus: .*Connection refused")
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("override", "fault", "code", "sentence"),
    [
        (
            "data.path=owner/none",
            None,
            2,
            r"data\.path=owner/none: Dataset 'owner/none' doesn't exist",
        ),
        (
            "data.subset=none",
            None,
            2,
            r"data\.path=owner/corpus: BuilderConfig 'none' not found.*plain",
        ),
        (
            "data.revision=" + "f" * 40,
            None,
            2,
            r"data\.path=owner/corpus: Revision 'f{40}' doesn't exist",
        ),
        (
            "seed=0",
            Fault(403, headers={"X-Error-Code": "GatedRepo"}),
            2,
            r"data\.path=owner/corpus: .* is a gated",
        ),
        ("seed=0", Fault(404, SECOND), 1, r"data\.path=owner/corpus: .*404 Not Found"),
        (
            "seed=0",
            Fault(403, "resolve.*train-00001"),
            1,
            r"data\.path=owner/corpus: .*403, Bearer <token>",
        ),
    ],
)
def test_what_will_not_pass_is_said_at_once(override, fault, code, sentence, hub, run, tmp_path):
    hub.faults = [fault] if fault else []
    done = run(*HUB_DATA, "tokenizer=bytes", override)
    done.fails(code, sentence)
    assert done.retries == []
    assert left_in(tmp_path / "cache") == []


def test_a_hub_that_refuses_is_not_replaced_by_what_the_library_has_in_its_cache(
    hub, run, tmp_path
):
    (tmp_path / "load.py").write_text(
        "import datasets\ndatasets.load_dataset('owner/corpus', 'plain')\n"
    )
    assert run(script=str(tmp_path / "load.py")).code == 0
    hub.faults = [Fault(401, headers={"X-Error-Code": "RepoNotFound"})]
    done = run(*HUB_DATA, "tokenizer=bytes")
    done.fails(2, r"data\.path=owner/corpus: .*Repository Not Found")


# -- tokenizers --------------------------------------------------------------------------------------------------------


def test_a_tokenizer_comes_through_faults_that_pass(hub, run, local):
    path, sha256 = local
    hub.faults = [
        Fault("half", "GET .*words.*tokenizer.json", times=2),
        Fault(503, "words.*tokenizer_config", times=2),
        Fault("hang", "words.*additional_chat_templates", times=1),
    ]
    done = run("data=files", path, *HUB_WORDS)
    assert done.sha256 == sha256, done
    assert done.other == []
    assert len(done.retries) >= 5
    assert not any(fault.times for fault in hub.faults)


@pytest.mark.parametrize(
    ("kind", "place"), [(503, "config.json"), ("hang", "additional_chat_templates")]
)
def test_a_tokenizer_that_does_not_come_is_one_sentence_within_bounds(
    kind, place, hub, run, tmp_path, local
):
    hub.faults = [Fault(kind, place)]
    done = run("data=files", local[0], *HUB_WORDS)
    done.fails(
        1,
        r"tokenizer\.path=owner/words: the tokenizer could not be fetched: the hub failed \d+ times in \d+ s, at last "
        rf"with {SAID.get(kind, kind)}.*; the same command tries again$",
    )
    assert done.retries
    assert done.seconds < 60
    assert left_in(tmp_path / "cache") == []


def test_a_tokenizer_that_is_not_there_is_said_at_once(run, local):
    done = run("data=files", local[0], *HUB_WORDS, "tokenizer.path=owner/none")
    done.fails(2, r"tokenizer\.path=owner/none: owner/none is not .* a valid model identifier")
    assert done.retries == []


@pytest.mark.torture
def test_a_tokenizer_that_trickles_is_given_up(hub, run, local):
    hub.faults = [Fault("trickle", "GET .*words.*tokenizer.json")]
    site = IMPATIENT + "import rope_exp.data.tokenizer as tokens\ntokens.FETCH_S = 20.0\n"
    done = run("data=files", local[0], *HUB_WORDS, site=site)
    done.fails(
        1,
        r"tokenizer\.path=owner/words: .* it took longer than 20 s; the same command tries again$",
    )
    assert any("GET" in request and "tokenizer.json" in request for request in hub.requests)
