"""Builders of campaign records that look like those of real runs, without training."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rope_exp.config.run import RunConfig
from rope_exp.config.variants import PAIRS
from rope_exp.evidence.published import TABLE
from rope_exp.evidence.records import record_path, write_record
from rope_exp.model.count import num_parameters
from rope_exp.plan.campaign import Cell, cell_name
from rope_exp.plan.campaign_file import Test
from rope_exp.run.folder import read_config
from rope_exp.system.files import write_json
from support.reports import config_of, make_run, sha256_of

PROBES = ("windows", "positions", "shift", "ablation")
Answers = Callable[[str, int, float], dict[str, Any]]
ENV = {
    "device": "a CPU",
    "cpu": "a kind",
    "torch": "2.13.0",
    "num_threads": 1,
    "world_size": 1,
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "python": "3.11.7",
    "corpus": {"tokens": {"train": 45_000_000, "validation": 500_000}},
}


def nine_losses(row: str, seed: int) -> float:
    """Return a loss: 4 times the published differences, 0.01 per seed, and noise of SD 0.003."""
    place = list(TABLE.losses).index(row)
    noise = np.random.default_rng([place, seed]).normal(scale=0.003)
    return float(4.0 + 4 * (TABLE.losses[row] - 2.712) + 0.01 * seed + noise)


def make_records(
    records: Path,
    campaign: str,
    *,
    rows: Iterable[str] | Mapping[str, Sequence[str]] = tuple(TABLE.losses),
    seeds: Iterable[int] = (0, 1, 2, 3, 4),
    loss: Callable[[str, int], float] = nine_losses,
    factors: Mapping[str, Sequence[Any]] | None = None,
    probes: Sequence[str] = PROBES,
    asked: Mapping[str, Sequence[str]] | None = None,
    answers: Answers | None = None,
    env: Mapping[str, Any] = ENV,
    test: Test | None = None,
) -> None:
    """Write one record for each combination of row, seed and factor values.

    Args:
        records: the folder of all campaigns' records.
        rows: choices of configs/pe, or the overrides of each row by its name.
        loss: maps a row and a seed to a loss in nats.
        factors: values by key, such as {"train.num_steps": [500, 1000]}; None varies only seeds.
        probes: probes that every row answers.
        asked: additional probes by row.
        answers: maps a row, a seed and a loss to answers; None gives plausible ones.
    """
    factors = factors or {}
    words = rows if isinstance(rows, Mapping) else {row: [f"pe={row}"] for row in rows}
    with TemporaryDirectory() as folder:
        for values in itertools.product(*factors.values()):
            chosen = dict(zip(factors, values, strict=True))
            for row, seed in itertools.product(words, seeds):
                name = cell_name(row, {**chosen, "seed": seed})
                given = [f"{key}={value}" for key, value in chosen.items()]
                variant, *others = words[row]
                every = [*probes, *(asked or {}).get(row, ())]
                params = num_parameters(config_of(*words[row], *given).architecture(2048))
                run = make_run(
                    Path(folder) / name,
                    pe=variant,
                    seed=seed,
                    loss=loss(row, seed),
                    overrides=[*others, f"train.probes=[{','.join(every)}]", *given],
                    result={"params": params, "init_sha256": sha256_of(f"{params} {seed}")},
                    env=env,
                )
                config = read_config(run)
                found = dict(answers(row, seed, loss(row, seed)) if answers else {})
                if answers is None:
                    found |= _probes(row, seed, loss(row, seed))
                    found |= _further(config, seed, loss(row, seed))
                write_json(run / "probes.json", {probe: found[probe] for probe in every})
                cell = Cell(name, row, {"seed": seed, **chosen}, config, test)
                write_record(record_path(records, campaign, name), campaign, cell, run)


def _probes(row: str, seed: int, loss: float) -> dict[str, Any]:
    """Return plausible answers: shifts raise the loss of absolute variants, ablations of all."""
    random = np.random.default_rng([len(row), seed])
    is_absolute = row in ("q_rope", "k_rope", "v_rope", "o_rope", "qkv_rope")
    edges = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    by_position = [loss + 2.0 / (1 + edge) for edge in edges[:-1]]
    windows = loss + random.normal(scale=0.3, size=64)
    windows += loss - windows.mean()
    sites = sorted(set(row.removesuffix("_rope")) & set("qkvo")) if row != "nope" else []
    return {
        "windows": {"loss": [round(float(x), 6) for x in windows]},
        "positions": {
            "num_windows": 64,
            "edges": edges,
            "loss": by_position,
            "lengths": [256, 512, 1024, 2048],
            "loss_at_length": [loss, loss + 0.01, loss + 0.05, loss + 0.2],
        },
        "shift": {
            "start": [0, 64, 256, 1024, 4096],
            "loss": [loss + 0.1 * is_absolute * place for place in range(5)],
        },
        "ablation": {"without": ["", *sites], "loss": [loss, *(loss + 0.3 for _ in sites)]},
    }


def _further(config: RunConfig, seed: int, loss: float) -> dict[str, Any]:
    """Return answers to the probes distance, extension and drift, for the config's sites."""
    random = np.random.default_rng([7, seed])
    pe = config.pe
    m = octaves(config.train.seq_len // 2)
    by_distance = [0.3 / (1 + each) + 0.002 for each in m]
    distance: dict[str, Any] = {
        "m": m,
        "attention": {str(layer): [w * (1 + layer / 2) for w in by_distance] for layer in range(4)},
        "uniform": [0.0054] * len(m),
    }
    if {"q", "k"} <= {*pe.rotate}:
        angles = 0.1 * np.array(m)
        distance["bound"] = [16.5 / (1 + each) ** 0.3 for each in m]
        distance["kappa"] = {
            str(layer): [(np.cos(angles + head) * 0.2 * head).tolist() for head in range(1, 3)]
            for layer in range(4)
        }

    pairs = [pair for pair in PAIRS if {*pair} & {*pe.rotate}]
    lengths = [config.train.seq_len * factor for factor in (1, 2, 4, 8)]
    growth = {"as_trained": 0.3, "interpolation": 0.2, "ntk_aware": 0.1, "yarn": 0.05}
    extension: dict[str, Any] = {"num_windows": 16, "lengths": lengths}
    for number, (method, slope) in enumerate(growth.items()):
        targets = dict.fromkeys([*pairs, "".join(pairs)]) if number else [""]
        losses = {
            target: [loss + slope * octave / (1 + len(target) / 4) for octave in range(4)]
            for target in targets
        }
        extension[method] = losses if number else losses[""]

    theta0 = 10000.0 ** -(np.arange(32) / 32)
    sites = {}
    for pair in pe.trained_pairs:
        moved = random.normal(scale=0.12, size=(4 if pe.trainable_scope == "layer" else 1, 32))
        sites[pair] = {
            "theta0": theta0.tolist(),
            "theta": (theta0 * np.exp(moved)).tolist(),
            "median": float(np.median(np.abs(moved))),
        }
        if pe.trainable is True:
            sites[pair]["crossings"] = 3 * seed
    return {"distance": distance, "extension": extension, "drift": {"sites": sites}}


def octaves(length: int) -> list[int]:
    """Return distances half an octave apart."""
    return sorted({round(2 ** (power / 2)) - 1 for power in range(2 * length.bit_length() - 1)})
