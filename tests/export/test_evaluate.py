"""Tests of `rope-exp evaluate` against scores computed here from the run's decoder."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.refused import refused
from tokenizers import Tokenizer
from torch import Tensor

from rope_exp import load_run
from rope_exp.commands import evaluate, export
from rope_exp.model.decoder import Decoder, weights, weights_sha256
from rope_exp.run.folder import read_config
from rope_exp.system.errors import ConfigError
from rope_exp.system.files import read_json

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed here")

TEXTS = ["Document 3. A text of two windows.", "Document 12.", "Ångström: é, and so on."]
ASKED = ["Document 3", "Docu"]
CHOICES = [". ", "ment"]


@pytest.fixture
def tasks(whole: tuple[Path, list[str]], tmp_path: Path) -> Path:
    """Return a folder of three tasks: bits per byte, a choice, and the run's own completion."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    lines: dict[str, list[dict[str, Any]]] = {
        "text": [{"text": text} for text in TEXTS],
        "ask": [{"question": asked, "answer": 0, "choices": CHOICES} for asked in ASKED],
        "said": [{"question": asked, "answer": completed(whole[0], asked)} for asked in ASKED],
    }
    for name, rows in lines.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def task(name: str, data: str, **keys: Any) -> None:
        files = {"test": str(folder / f"{data}.jsonl")}
        common = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": files}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(common | {"test_split": "test"} | keys))

    task(
        "own_bits",
        "text",
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "bits_per_byte"}],
    )
    task(
        "own_choice",
        "ask",
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="answer",
        target_delimiter="",
        metric_list=[{"metric": "acc"}],
    )
    task(
        "own_completion",
        "said",
        output_type="generate_until",
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["@@@"], "max_gen_toks": 6, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )
    return folder


def completed(run: Path, text: str) -> str:
    """Return the run's greedy completion of a text by six tokens."""
    decoder, tokenizer = load_run(run)
    ids = tokenizer.encode(text).ids
    with torch.no_grad():
        for _ in range(6):
            ids.append(int(decoder(torch.tensor([ids]))[0, -1].argmax()))
    said: str = tokenizer.decode(ids)
    return said.removeprefix(text)


def nats(decoder: Decoder, ids: list[int], first: int) -> float:
    """Return the summed loss, in nats, of the tokens from `first` on."""
    with torch.no_grad():
        logits = decoder(torch.tensor([ids]))[0, first - 1 : -1]
    return float(
        torch.nn.functional.cross_entropy(logits, torch.tensor(ids[first:]), reduction="sum")
    )


def bits_a_byte(decoder: Decoder, tokenizer: Tokenizer, window: int) -> float:
    """Return bits per byte over windows of `window` tokens; each text follows the end token."""
    end = len(decoder.lm_head.weight) - 1
    total = 0.0
    for text in TEXTS:
        ids = [end, *tokenizer.encode(text).ids]
        for start in range(0, len(ids) - 1, window):
            # The last window starts earlier, so that it is full; only its new tokens are scored.
            stop = min(start + window + 1, len(ids))
            begin = max(0, stop - window - 1)
            total += nats(decoder, ids[begin:stop], start + 1 - begin)
    return total / math.log(2) / sum(len(text.encode()) for text in TEXTS)


def choices(decoder: Decoder, tokenizer: Tokenizer) -> float:
    """Return the share of questions whose first choice is the more likely one."""
    right = 0
    for asked in ASKED:
        ids = tokenizer.encode(asked).ids
        losses = [nats(decoder, ids + tokenizer.encode(each).ids, len(ids)) for each in CHOICES]
        right += losses[0] < losses[1]
    return right / len(ASKED)


@pytest.mark.parametrize("of_export", [False, True], ids=["run", "export"])
def test_its_numbers_are_ours(
    whole: tuple[Path, list[str]],
    tasks: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    of_export: bool,
) -> None:
    run, _ = whole
    folder = run
    if of_export:
        folder = tmp_path / "exported"
        export([str(run), str(folder)])
    out = tmp_path / "out.json"
    words = [
        "--tasks",
        "own_bits,own_choice,own_completion",
        "--include",
        str(tasks),
        "--out",
        str(out),
    ]
    assert evaluate([str(folder), *words]) == 0

    found = read_json(out)
    decoder, tokenizer = load_run(run)
    window = read_config(run).train.longest
    bits = found["results"]["own_bits"]["bits_per_byte,none"]
    assert bits == pytest.approx(bits_a_byte(decoder, tokenizer, window), rel=1e-5)
    assert found["results"]["own_choice"]["acc,none"] == choices(decoder, tokenizer)
    assert found["results"]["own_completion"]["exact_match,none"] == 1
    saved: dict[str, Tensor] = weights(decoder)
    assert found["weights_sha256"] == weights_sha256(saved)
    assert found["weights_sha256"] in capsys.readouterr().out


def test_what_cannot_be_evaluated_is_refused(
    whole: tuple[Path, list[str]], tasks: Path, tmp_path: Path
) -> None:
    with refused("--tasks=none_such", "no such task", by=ConfigError):
        evaluate([str(whole[0]), "--tasks", "none_such", "--include", str(tasks)])
    with refused("FOLDER=", "no run and no exported model", by=ConfigError):
        evaluate([str(tmp_path), "--tasks", "own_bits", "--include", str(tasks)])
