"""Tests of the hub: real processes against a fake one on loopback."""

import json
from pathlib import Path

import pytest
import yaml
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
    SECOND,
    TOKEN,
    UNPINNED,
    Local,
    Run,
)

from rope_exp.files import read_json

# -- tokens ----------------------------------------------------------------------------------------


def test_the_hub_gives_the_tokens_of_local_files_and_once(hub: Hub, run: Run, local: Local) -> None:
    first = run(*HUB_DATA, "tokenizer=bytes")
    assert first.sha256 == local[1], first
    # The token was sent; otherwise the checks that it never leaks could not fail.
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
    # Check the guard itself: a corpus that is not prepared tries the network in vain.
    done = run(*HUB_DATA, "tokenizer=bytes", site=IMPATIENT + NO_NETWORK)
    done.fails(1, r"data\.path=owner/corpus: ")
    assert "127.0.0.1" in (tmp_path / "sockets").read_text()


# -- the commit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", ["null", pytest.param("main", marks=pytest.mark.torture)])
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


@pytest.mark.torture
def test_a_commit_that_cannot_be_asked_for_is_one_sentence(hub: Hub, run: Run) -> None:
    """This holds even for a prepared corpus: only the hub knows which commit a branch names."""
    assert run(*UNPINNED, "tokenizer=bytes").code == 0
    hub.stop()
    run(*UNPINNED, "tokenizer=bytes").fails(1, r"data\.path=owner/corpus: the hub did not")
    assert run(*HUB_DATA, "tokenizer=bytes").code == 0


@pytest.mark.torture
def test_a_tokenizers_revision_becomes_a_commit(
    hub: Hub, run: Run, tmp_path: Path, local: Local
) -> None:
    """A branch that moves is another tokenizer, and so another folder, as with a corpus."""
    words = ("data=files", local[0], "tokenizer=pretrained", "tokenizer.path=owner/words")
    first = run(*words, "tokenizer.revision=main")
    assert run("data=files", local[0], *HUB_WORDS).sha256 == first.sha256
    assert len(left_in(tmp_path / "cache")) == 1

    tiny = [override for override in TINY if not override.startswith(("data=", "tokenizer="))]
    done = run(*words, *tiny, "train.num_steps=3", f"run.dir={tmp_path / 'run'}", script="train.py")
    assert done.code == 0, done
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["tokenizer"]["revision"] == Hub.revision

    hub.revision = "f" * 40
    assert run(*words).code == 0
    assert len(left_in(tmp_path / "cache")) == 2
    hub.stop()
    run(*words).fails(1, r"tokenizer\.path=owner/words: the tokenizer could not be fetched: ")


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["half", *(pytest.param(each, marks=pytest.mark.torture) for each in (429, 503))]
)
def test_a_fault_that_passes_changes_no_token(kind: int, hub: Hub, run: Run, local: Local) -> None:
    hub.faults = [Fault(kind, place, times=1) for place in (FIRST, SECOND)]
    done = run(*HUB_DATA, "tokenizer=bytes")
    assert done.sha256 == local[1], done
    assert not any(fault.times for fault in hub.faults)


@pytest.mark.torture
@pytest.mark.parametrize(
    ("words", "place", "sentence"),
    [
        (
            ["tokenizer=bytes"],
            SECOND,
            r"data\.path=owner/corpus: the hub did not give it: .*tries again$",
        ),
        # transformers itself would skip the missing file, and build another tokenizer.
        (
            HUB_WORDS,
            "words.*tokenizer_config",
            r"tokenizer\.path=owner/words: the tokenizer could not be fetched: ",
        ),
    ],
    ids=["corpus", "tokenizer"],
)
def test_a_fault_that_stays_is_one_sentence(
    hub: Hub, run: Run, tmp_path: Path, local: Local, words: list[str], place: str, sentence: str
) -> None:
    """Nothing is left behind, and the same command succeeds once the fault is gone."""
    hub.faults = [Fault(503, place)]
    run(*HUB_DATA, *words).fails(1, sentence)
    assert left_in(tmp_path / "cache") == []
    hub.faults = []
    assert run(*HUB_DATA, *words).sha256 == local[1]


@pytest.mark.parametrize(
    ("override", "fault", "sentence"),
    [
        ("data.path=owner/none", None, r"data\.path=owner/none: .*doesn't exist"),
        ("data.subset=none", None, r"data\.path=owner/corpus: .*'none' not found.*plain"),
        ("data.revision=" + "f" * 40, None, r"data\.path=owner/corpus: .*f{40}"),
        ("data.text_column=body", None, r"data\.text_column=body: is no column; there are text"),
        ("seed=0", Fault(403, headers={"X-Error-Code": "GatedRepo"}), r"data\.path=.*gated"),
    ],
)
def test_a_mistake_is_one_sentence(
    override: str, fault: Fault | None, sentence: str, hub: Hub, run: Run, tmp_path: Path
) -> None:
    hub.faults = [fault] if fault else []
    done = run(*HUB_DATA, "tokenizer=bytes", override)
    done.fails(2, sentence)
    assert left_in(tmp_path / "cache") == []


def test_the_library_s_cache_is_not_read_where_the_hub_refuses(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
    code = "import datasets\ndatasets.load_dataset('owner/corpus', 'plain')\n"
    (tmp_path / "load.py").write_text(code)
    assert run(script=str(tmp_path / "load.py")).code == 0
    hub.faults = [Fault(401, headers={"X-Error-Code": "RepoNotFound"})]
    run(*HUB_DATA, "tokenizer=bytes").fails(2, r"data\.path=owner/corpus: ")


# -- tokenizers ------------------------------------------------------------------------------------


def test_a_tokenizer_that_is_not_there_is_one_sentence(run: Run, local: Local) -> None:
    done = run("data=files", local[0], *HUB_WORDS, "tokenizer.path=owner/none")
    done.fails(2, r"tokenizer\.path=owner/none: is no folder here, and no tokenizer of the hub")
