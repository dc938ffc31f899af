"""The parts that race contenders, which train or prepare side by side."""

import shlex
import statistics
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import ours
from benchmarks.device import floor
from benchmarks.race import race
from benchmarks.setting import Bench
from rope_exp.plan.costs import peak_flops_per_s
from rope_exp.system.console import log
from rope_exp.system.errors import ConfigError

LITGPT = ours.REPOSITORY / ".venv-litgpt" / "bin" / "python"


def speed(bench: Bench, model: str) -> dict[str, Any]:
    """Race our training with its peers; add the floor of a step, and MFU."""
    spec = ours.spec_of(bench.words(model))
    specs = {
        "ours": spec | {"arm": "ours"},
        "bare": spec | {"arm": "bare"},
        "Trainer eager": spec | {"arm": "Trainer", "compile": False},
        "Trainer compiled": spec | {"arm": "Trainer"},
    }
    if LITGPT.exists():
        specs["litgpt"] = spec | {"arm": "litgpt", "python": str(LITGPT)}
    else:
        log(f"  litgpt: left out, there is no {LITGPT}")
    arms = _race_here(bench, specs)

    cost = ours.cost(spec)
    least = floor(bench, spec, cost)
    peak = peak_flops_per_s(bench.facts["device"])
    rate = arms["ours"]["tokens_per_s"] * cost["flops_per_token"]
    return {
        "arms": arms,
        **cost,
        "precision": "bf16" if spec["bf16"] else "fp32",
        "tokens_per_step": spec["tokens_per_step"],
        "floor": least,
        "of_floor": least["floor_s"] / arms["ours"]["step_s"][1],
        "mfu": rate / peak if peak else None,
    }


def race_arms(bench: Bench, model: str) -> dict[str, Any]:
    """Race bare loops, one with the overrides of each --arm.

    An arm vocab_size=N sets the model's vocabulary alone, beyond the tokens that a tokenizer can
    learn from the corpus.
    """
    if not bench.options.arms:
        raise ConfigError("--arm", ..., "say at least one, such as --arm pe=nope, for a race")

    specs: dict[str, ours.Spec] = {}
    for words in bench.options.arms:
        key, _, size = words.partition("=")
        overrides = [] if key == "vocab_size" else shlex.split(words)
        spec = ours.spec_of(bench.words(model, *overrides)) | {"arm": "bare"}
        if key == "vocab_size":
            spec["vocab_size"] = int(size)
        specs[f"{words} again" if words in specs else words] = spec
    return _race_here(bench, specs)


def _race_here(bench: Bench, specs: dict[str, ours.Spec]) -> dict[str, Any]:
    """Race all at once; on a GPU race the first with one other at a time, to fit its memory."""
    [(first, its_spec), *others] = specs.items()
    together = [specs]
    if bench.device == "cuda" and others:
        together = [{first: its_spec, name: spec} for name, spec in others]

    found: dict[str, Any] = {}
    for some in together:
        # The first contender keeps its first race's result: there it compiled before any other.
        found = race(some, rounds=bench.rounds, steps=_steps(its_spec)) | found
    return {name: found[name] for name in specs}


def against(bench: Bench, model: str) -> dict[str, Any]:
    """Race training in another checkout with this one, each round with fresh processes.

    Two processes of one kind differ, too. Two --arm give each side further overrides.

    Returns:
        ratio, the median over rounds of this side's step time over the other's; interval_95 of
        that median, by the order statistics of the sign test (null if rounds are too few for one);
        and for each round the ratio and the step times of the other and of this, in seconds.
    """
    tree = bench.options.tree
    if tree is None or not (tree / "train.py").exists():
        raise ConfigError("--tree", str(tree), "must be the folder of a checkout of the project")
    words = bench.options.arms or ["", ""]
    if len(words) != 2:
        raise ConfigError("--arm", " and ".join(words), "must be given twice, or not at all")

    other, this = (ours.spec_of(bench.words(model, *shlex.split(arm))) for arm in words)
    specs = {
        "other": other | {"arm": "ours", "tree": str(tree.resolve())},
        "this": this | {"arm": "ours"},
    }

    rounds = []
    for _ in range(bench.rounds):
        found = race(specs, rounds=6, steps=_steps(specs["this"]))
        ratio = found["this"]["times_as_slow"][1] / found["other"]["times_as_slow"][1]
        rounds.append([ratio, found["other"]["step_s"][1], found["this"]["step_s"][1]])
        # Alternate which one starts first.
        specs = dict(reversed(specs.items()))

    ratios = [ratio for ratio, _, _ in rounds]
    interval = np.array(stats.quantile_test(ratios).confidence_interval(0.95))
    return {
        "ratio": statistics.median(ratios),
        "interval_95": None if np.isnan(interval).any() else interval.tolist(),
        "rounds": rounds,
    }


def prepare(bench: Bench, model: str) -> dict[str, Any]:
    """Race preparation with plain tokenizers, which have the text in memory; a step is all of it.

    The corpus comes from `--set data=...`, and both use the same tokenizer.
    """
    spec = ours.spec_of(["tokenizer=bpe_8k", *bench.options.overrides])
    spec["tokens_per_step"] = spec["corpus_tokens"]
    specs = {name: spec | {"arm": name} for name in ("prepare", "encode")}
    found = race(specs, rounds=bench.rounds, steps=1, warmup=0)

    for arm in found.values():
        arm["text_bytes_per_s"] = spec["corpus_bytes"] / arm["step_s"][1]
    return {"text_bytes": spec["corpus_bytes"], "tokens": spec["corpus_tokens"], "arms": found}


def _steps(spec: ours.Spec) -> int:
    """Return the number of steps in one turn of a race, which takes seconds at most."""
    if spec["tokens_per_step"] <= 4096:
        return 10
    return 1 if spec["device"] == "cpu" else 4
