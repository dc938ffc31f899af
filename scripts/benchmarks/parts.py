"""The parts that are races of contenders, which train or prepare side by side."""

import math
import statistics
import tempfile
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import ours
from benchmarks.device import floor
from benchmarks.race import race
from benchmarks.setting import Bench
from rope_exp.config.costs import peak_flops_per_s
from rope_exp.system.console import log
from rope_exp.system.errors import ConfigError

LITGPT = ours.REPOSITORY / ".venv-litgpt" / "bin" / "python"
COPIES = 10  # of the text, on which preparation must take no more memory

GROWTH = {
    "length": (256, 512, 1024, 2048, 4096, 8192),
    "width": (128, 256, 512, 1024),
    "layers": (2, 4, 8, 16),
    "vocabulary": (2048, 8192, 32768, 131072),
}
GROWTH_TOKENS = 8192  # of a step, so that the longest sequence is one row


def speed(bench: Bench, model: str) -> dict[str, Any]:
    """Race our training with its peers; beside it the floor of a step, and MFU."""
    spec = _spec(bench, model)
    least = floor(bench, spec)
    peers = {
        "bare": spec | {"arm": "bare"},
        "Trainer eager": spec | {"arm": "Trainer", "compile": False},
        "Trainer compiled": spec | {"arm": "Trainer"},
    }
    if LITGPT.exists():
        peers["litgpt"] = spec | {"arm": "litgpt", "python": str(LITGPT)}
    else:
        log(f"  litgpt: left out, there is no {LITGPT}")

    # On a GPU two at a time: each holds what its model takes of the GPU's memory.
    together = [peers]
    if bench.device == "cuda":
        together = [{name: peer} for name, peer in peers.items()]
    arms: dict[str, Any] = {}
    for some in together:
        arms |= race({"ours": spec} | some, rounds=bench.rounds, steps=_steps(spec))

    config = ours.settled(spec["words"])
    cost = ours.cost(config, spec["vocab_size"])
    peak = peak_flops_per_s(bench.facts["device"])
    rate = arms["ours"]["tokens_per_s"] * cost["flops_per_token"]
    return {
        "arms": arms,
        **cost,
        "precision": config.train.precision,
        "tokens_per_step": spec["tokens_per_step"],
        "floor": least,
        "of_floor": least["floor_s"] / arms["ours"]["step_s"][1],
        "mfu": rate / peak if peak else None,
    }


def variants(bench: Bench, model: str) -> dict[str, Any]:
    """Race the variants; times_as_slow is beside NoPE. On a GPU four, which must fit into it."""
    chosen = ours.NINE if bench.device == "cpu" else ours.FOUR
    specs = {pe: _spec(bench, model, f"pe={pe}", arm="bare") for pe in chosen}
    return race(specs, rounds=bench.rounds, steps=_steps(specs["nope"]))


def deterministic(bench: Bench, model: str) -> dict[str, Any]:
    """Race deterministic mode with what goes without: the ratio is that of their tokens/s."""
    with_it = _spec(bench, model, "train.deterministic=true")
    return _compare(bench, with_it, _spec(bench, model, "train.deterministic=false"))


def against(bench: Bench, model: str) -> dict[str, Any]:
    """Race training in another checkout with this one: the ratio is our step time over its."""
    tree = bench.options.tree
    if tree is None or not (tree / "train.py").exists():
        raise ConfigError("--tree", str(tree), "must be the folder of a checkout of the project")
    spec = _spec(bench, model)
    return _compare(bench, spec | {"tree": str(tree.resolve())}, spec)


def _compare(bench: Bench, first: ours.Spec, second: ours.Spec) -> dict[str, Any]:
    """Race two contenders, each round with fresh processes: two of one kind differ, too.

    Returns:
        ratio, the median over rounds of the second's step time over the first's; interval_95 of
        that median, by the order statistics of the sign test (null where rounds are too few for
        one); and the ratio and both step times, in seconds, of each round.
    """
    rounds = []
    specs = {"first": first, "second": second}
    for _ in range(bench.rounds):
        found = race(specs, rounds=6, steps=_steps(first))
        step_s = [found[name]["step_s"][1] for name in ("first", "second")]
        slower = np.divide(found["second"]["times_as_slow"][1], found["first"]["times_as_slow"][1])
        rounds.append([float(slower), *step_s])
        # The one that is started first is not always the same.
        specs = dict(reversed(specs.items()))

    ratios = [slower for slower, _, _ in rounds]
    interval = np.array(stats.quantile_test(ratios).confidence_interval(0.95))
    return {
        "ratio": statistics.median(ratios),
        "interval_95": None if np.isnan(interval).any() else interval.tolist(),
        "rounds": rounds,
    }


def compiling(bench: Bench, model: str) -> dict[str, Any]:
    """Time the first step of a fresh process, and say after how many steps compiling has paid.

    The first step is timed with an empty compiler's cache, with the one that it left, of another
    variant with that one, and uncompiled.
    """
    with tempfile.TemporaryDirectory() as cache:
        spec = _spec(bench, model, arm="bare", environment={"TORCHINDUCTOR_CACHE_DIR": cache})
        words = spec["words"]
        specs = {
            "cold": spec,
            "warm": spec,
            "other_variant": spec | {"words": [*words, "pe=vo_rope"]},
            "eager": spec | {"words": [*words, "train.compile=false"]},
        }
        found: dict[str, Any] = {}
        for name in specs:
            alone = race({name: specs[name]}, rounds=1, steps=1, warmup=0)
            found[f"{name}_s"] = alone[name]["first_step_s"]
        both = {name: specs[name] for name in ("warm", "eager")}
        steps = race(both, rounds=bench.rounds, steps=3)

    found["eager_step_s"] = steps["eager"]["step_s"][1]
    found["compiled_step_s"] = steps["warm"]["step_s"][1]
    won = found["eager_step_s"] - found["compiled_step_s"]
    for name in ("cold", "warm"):
        cost = max(found[f"{name}_s"] - found["eager_s"], 0)
        found[f"pays_after_steps_{name}"] = cost / won if won > 0 else None
    return found


def growth(bench: Bench, model: str) -> dict[str, Any]:
    """Double one thing at a time, at the same number of tokens a step.

    Returns:
        By axis: points (step_s and peak_bytes by value), and of the last doubling time_exponent
        and memory_exponent, the powers with which they grow.
    """
    found: dict[str, Any] = {}
    for axis, values in GROWTH.items():
        points: dict[int, dict[str, float]] = {}
        for value in values:
            spec = _spec(bench, model, *_grown(axis, value), arm="bare")
            if axis == "vocabulary":
                # The corpus may have ids beyond it: then its own vocabulary is the point.
                value = max(value, spec["vocab_size"])
                spec["vocab_size"] = value
            alone = race({f"{axis} {value}": spec}, rounds=3, steps=1, warmup=1)
            [summary] = alone.values()
            points[value] = {"step_s": summary["step_s"][1], "peak_bytes": summary["peak_bytes"]}

        *_, before, last = points
        found[axis] = {"points": points}
        for name, key in (("time_exponent", "step_s"), ("memory_exponent", "peak_bytes")):
            grown = points[last][key] / points[before][key]
            found[axis][name] = math.log(grown, last / before)
    return found


def _grown(axis: str, value: int) -> list[str]:
    length = value if axis == "length" else 256
    words = [f"train.seq_len={length}", f"train.global_batch_size={GROWTH_TOKENS // length}"]
    words.append("train.micro_batch_size=null")
    if axis == "layers":
        words.append(f"model.num_hidden_layers={value}")
    if axis == "width":
        heads = value // 64
        words += [f"model.hidden_size={value}", f"model.intermediate_size={value * 11 // 4}"]
        words += [f"model.{key}={heads}" for key in ours.ATTENTION]
    return words


def prepare(bench: Bench, model: str) -> dict[str, Any]:
    """Race preparation with plain tokenizers, and prepare ten times the text.

    The corpus is that of `--set data=...`; a step is all of it. Plain tokenizers have the text in
    memory, and the same tokenizer.
    """
    spec = ours.preparation_spec(["tokenizer=bpe_8k", *bench.options.overrides]) | {"copies": 1}
    arms = {name: spec | {"arm": name} for name in ("prepare", "encode")}
    found = race(arms, rounds=bench.rounds, steps=1, warmup=0)

    long = {"copies": COPIES, "tokens_per_step": COPIES * spec["tokens_per_step"]}
    arms = {f"prepare {COPIES} times the text": arms["prepare"] | long}
    found |= race(arms, rounds=1, steps=1, warmup=0)

    for arm in found.values():
        arm["text_bytes_per_s"] = arm["tokens_per_s"] * spec["text_bytes"] / spec["tokens_per_step"]
    return {"text_bytes": spec["text_bytes"], "tokens": spec["tokens_per_step"], "arms": found}


def _spec(bench: Bench, model: str, *words: str, arm: str = "ours", **more: Any) -> ours.Spec:
    """Return what one contender that trains is told."""
    training = ours.training_spec(bench.words(model, *words))
    return training | {"arm": arm, "tree": str(ours.REPOSITORY)} | more


def _steps(spec: ours.Spec) -> int:
    """Return the steps of one turn of a race, which takes seconds at the most."""
    if spec["tokens_per_step"] <= 4096:
        return 10
    return 1 if spec["device"] == "cpu" else 4
