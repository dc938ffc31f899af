"""Faults of the hub that stay: one sentence, within bounds, and nothing left behind."""

import re
from pathlib import Path

import pytest
from support.configs import TINY, left_in
from support.hub import Fault, Hub
from support.hub_commands import (
    HUB_DATA,
    HUB_WORDS,
    IMPATIENT,
    SECOND,
    VALIDATION,
    Kind,
    Local,
    Run,
    patience_ended,
)

# -- faults that stay ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "place"), [("hang", ""), (429, "/tree/"), ("half", SECOND), (500, VALIDATION)]
)
def test_a_fault_that_stays_is_one_sentence_within_bounds(
    kind: Kind, place: str, hub: Hub, run: Run, tmp_path: Path, local: Local
) -> None:
    """And the same command tries again."""
    hub.faults = [Fault(kind, place, headers={"Retry-After": "3600"} if kind == 429 else {})]
    done = run(*HUB_DATA, "tokenizer=bytes")
    doing = "(the dataset could not be opened|reading stopped)"
    done.fails(1, rf"data\.path=owner/corpus: {doing}: {patience_ended(kind)}")
    attempts = int(re.findall(r"failed (\d+) times", done.other[0])[0])
    assert len(done.retries) == attempts - 1 > 0
    assert sum(bool(re.search(place, request)) for request in hub.requests) == attempts
    assert done.seconds < 60  # of patience 1.5; the libraries' own would last minutes
    assert left_in(tmp_path / "cache") == []
    hub.faults = []
    assert run(*HUB_DATA, "tokenizer=bytes").sha256 == local[1]


def test_a_hub_that_is_not_there_fails_a_run_in_one_sentence(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
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
def test_what_will_not_pass_is_said_at_once(
    override: str,
    fault: Fault | None,
    code: int,
    sentence: str,
    hub: Hub,
    run: Run,
    tmp_path: Path,
) -> None:
    hub.faults = [fault] if fault else []
    done = run(*HUB_DATA, "tokenizer=bytes", override)
    done.fails(code, sentence)
    assert done.retries == []
    assert left_in(tmp_path / "cache") == []


def test_the_library_s_cache_is_not_read_where_the_hub_refuses(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
    code = "import datasets\ndatasets.load_dataset('owner/corpus', 'plain')\n"
    (tmp_path / "load.py").write_text(code)
    assert run(script=str(tmp_path / "load.py")).code == 0
    hub.faults = [Fault(401, headers={"X-Error-Code": "RepoNotFound"})]
    done = run(*HUB_DATA, "tokenizer=bytes")
    done.fails(2, r"data\.path=owner/corpus: .*Repository Not Found")


# -- tokenizers ------------------------------------------------------------------------------------


def test_a_tokenizer_comes_through_faults_that_pass(hub: Hub, run: Run, local: Local) -> None:
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
def test_a_tokenizer_that_does_not_come_is_one_sentence(
    kind: Kind, place: str, hub: Hub, run: Run, tmp_path: Path, local: Local
) -> None:
    hub.faults = [Fault(kind, place)]
    done = run("data=files", local[0], *HUB_WORDS)
    doing = "the tokenizer could not be fetched"
    done.fails(1, rf"tokenizer\.path=owner/words: {doing}: {patience_ended(kind)}")
    assert done.retries
    assert done.seconds < 60
    assert left_in(tmp_path / "cache") == []


def test_a_tokenizer_that_is_not_there_is_said_at_once(run: Run, local: Local) -> None:
    done = run("data=files", local[0], *HUB_WORDS, "tokenizer.path=owner/none")
    done.fails(2, r"tokenizer\.path=owner/none: owner/none is not .* a valid model identifier")
    assert done.retries == []


@pytest.mark.torture
def test_a_tokenizer_that_trickles_is_given_up(hub: Hub, run: Run, local: Local) -> None:
    hub.faults = [Fault("trickle", "GET .*words.*tokenizer.json")]
    site = IMPATIENT + "import rope_exp.data.pretrained as pretrained\npretrained.FETCH_S = 20.0\n"
    done = run("data=files", local[0], *HUB_WORDS, site=site)
    done.fails(
        1,
        r"tokenizer\.path=owner/words: .* it took longer than 20 s; the same command tries again$",
    )
    assert any("GET" in request and "tokenizer.json" in request for request in hub.requests)
