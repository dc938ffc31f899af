"""The hub: real processes against a stand-in, and faults that pass."""

import json
import random
import re
from pathlib import Path

import pytest
from support.configs import TINY, left_in
from support.hub import Fault, Hub
from support.hub_commands import (
    CARD,
    CORPUS,
    FIRST,
    HELD_OUT,
    HUB_DATA,
    HUB_WORDS,
    IMPATIENT,
    NO_NETWORK,
    SAID,
    SECOND,
    TEXTS,
    TOKEN,
    UNPINNED,
    Kind,
    Local,
    Run,
    parquet,
    prepared_from_files,
)

from rope_exp.system.files import read_json

# -- all is well -----------------------------------------------------------------------------------


def test_the_hub_gives_the_tokens_of_local_files_and_once(hub: Hub, run: Run, local: Local) -> None:
    first = run(*HUB_DATA, "tokenizer=bytes")
    assert first.sha256 == local[1]
    assert first.other == []
    # Or the tests that it is never seen could not fail.
    assert f"Bearer {TOKEN}" in hub.authorizations
    assert any("cursor=" in request for request in hub.requests)
    before = len(hub.requests)
    assert run(*HUB_DATA, "tokenizer=bytes").sha256 == local[1]
    assert hub.requests[before:] == []


def test_prepared_data_needs_no_network_at_all(hub: Hub, run: Run, tmp_path: Path) -> None:
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


# -- the commit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", ["null", "main"])
def test_a_revision_that_is_no_commit_becomes_one(
    revision: str, hub: Hub, run: Run, tmp_path: Path, local: Local
) -> None:
    """The folder is that of the pinned corpus, and its record names the commit."""
    done = run(*UNPINNED, f"data.revision={revision}", "tokenizer=bytes")
    assert done.sha256 == local[1], done
    [folder] = left_in(tmp_path / "cache")
    facts = read_json(tmp_path / "cache" / folder / "meta.json")["corpus"]
    assert facts["revision"] == Hub.revision

    assert run(*HUB_DATA, "tokenizer=bytes").sha256 == local[1]
    assert left_in(tmp_path / "cache") == [folder]


def test_a_branch_that_has_moved_is_a_new_corpus(hub: Hub, run: Run, tmp_path: Path) -> None:
    first = run(*UNPINNED, "tokenizer=bytes")
    hub.revision = "f" * 40
    shards = dict.fromkeys(CORPUS, HELD_OUT)
    hub.repositories = {"datasets/owner/corpus": {"README.md": CARD, **shards}}
    second = run(*UNPINNED, "tokenizer=bytes")
    assert second.code == 0, second
    assert second.sha256 != first.sha256
    assert len(left_in(tmp_path / "cache")) == 2


@pytest.mark.parametrize("changes", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_a_commit_that_cannot_be_asked_for_is_one_sentence(
    changes: dict[str, str], hub: Hub, run: Run
) -> None:
    """Even of a corpus that is prepared: which commit a branch names, the hub alone knows."""
    assert run(*UNPINNED, "tokenizer=bytes").code == 0
    hub.stop()
    done = run(*UNPINNED, "tokenizer=bytes", **changes)
    done.fails(1, r"data\.path=owner/corpus: its newest commit could not .*\(data\.revision=COMMIT")
    assert run(*HUB_DATA, "tokenizer=bytes", **changes).code == 0


def test_a_dataset_without_a_commit_for_us_is_refused_at_once(run: Run) -> None:
    done = run("data=hub", "data.path=owner/none", "tokenizer=bytes")
    done.fails(2, r"data\.path=owner/none: .*Repository Not Found")
    assert done.retries == []


# -- faults that pass ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [429, 408, 503, "hang", "half", "short"])
def test_a_fault_that_passes_changes_no_token_and_is_said(
    kind: Kind, hub: Hub, run: Run, local: Local
) -> None:
    places = [FIRST, SECOND]
    if kind != "short":
        places += ["GET .*README", "GET .*/tree/"]
    hub.faults = [Fault(kind, place, times=1) for place in places]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == local[1], done
    assert done.other == []
    said = [line for line in done.retries if re.match(f"hub: {SAID.get(str(kind), kind)}", line)]
    assert len(said) >= len(places), done
    assert not any(fault.times for fault in hub.faults)


def test_no_document_is_missed_or_comes_twice(hub: Hub, run: Run, local: Local) -> None:
    """Whatever fails, in whatever order."""
    chance = random.Random(0)
    choices: list[Kind] = [429, 408, 500, 502, 503, "half"]
    kinds = [chance.choice(choices) for _ in range(30)]
    hub.faults = [Fault(kind, times=1, after=chance.randrange(60)) for kind in kinds]
    hub.faults += [
        Fault("short", "GET /files/", times=1, after=chance.randrange(4)) for _ in range(3)
    ]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == local[1], done
    assert len(done.retries) > 10


def test_a_shard_that_breaks_off_in_the_middle_goes_on_there(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
    """It is so large that it is asked for in parts, of which the later ones break."""
    texts = [f"Document {n}. " + f"{n * 7919} " * 6000 for n in range(150)]
    shard = parquet(texts, row_group_size=10, compression="none", use_dictionary=False)
    assert len(shard) > 5_000_000
    files = {
        "data/train-00000-of-00001.parquet": shard,
        "data/validation-00000-of-00001.parquet": parquet(TEXTS),
    }
    hub.repositories = {"datasets/owner/corpus": {"README.md": CARD, **files}}
    kinds: list[Kind] = ["half", "short", 503]
    hub.faults = [Fault(kind, r"/files/.* bytes=[1-9]", times=2) for kind in kinds]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == prepared_from_files(files, tmp_path)[1]
    assert len(done.retries) >= 6


def test_a_hub_that_names_a_time_to_wait_is_given_it(hub: Hub, run: Run, local: Local) -> None:
    hub.faults = [Fault(429, FIRST, times=1, headers={"Retry-After": "1"})]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == local[1]
    assert re.search(r"429 Too Many Requests \(.*\); attempt 2 in 1\.0 s$", done.retries[0])
