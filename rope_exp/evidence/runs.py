"""Run folders of one group, read and made sure of: the rows of a table that may stand beside each other.

A row may be compared with another only if everything but the variant was the same. What the run folders say of that is
checked here, before anything is written; a `ReportError` is one sentence that names the folders. No torch.
"""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rope_exp.config.run import RunConfig, differing_keys
from rope_exp.evidence import published
from rope_exp.evidence.contrasts import Row, Status, Variant, compare, kendall_tau, shared_means
from rope_exp.run.folder import (
    CONFIG,
    RESULT,
    check_fields,
    read_config,
    read_env,
    read_result,
)
from rope_exp.run.metrics import MARK_FIELDS, METRICS, read_metrics
from rope_exp.system.files import read_json

REFERENCE = "qk_rope"
HOW_TO = "`python train.py -m 'pe=glob(*)'` makes the nine runs"


class ReportError(ValueError):
    """Runs that may not share a table; the message names the folders."""


@dataclass(frozen=True)
class Run:
    """One run folder. `where` is its path below the runs' folder, so that tables do not depend on where that is."""

    folder: Path
    where: str
    config: RunConfig
    result: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    env: dict[str, Any]

    @property
    def status(self) -> Status:
        """What result.json says; unfinished while there is none."""
        if self.result is None:
            return "unfinished"
        return "finished" if self.result["status"] == "finished" else "diverged"

    @property
    def variant_name(self) -> str:
        """The variant as a person writes it: VO-RoPE, or QK-RoPE base500000 where a key departs from the usual."""
        pe = self.config.pe
        return f"{pe.name} {pe.label.partition('-')[2]}".rstrip()

    @property
    def loss_nats(self) -> float:
        """A finished run's validation loss."""
        assert self.result is not None
        assert self.status == "finished"
        return float(self.result["val/loss"])


@dataclass(frozen=True)
class Group:
    """Runs that may be compared, by label and seed, and what was left out."""

    name: str
    runs: tuple[Run, ...]
    left_out: tuple[str, ...]  # folders that hold no run

    def of(self, label: str) -> list[Run]:
        """A variant's runs, by seed."""
        return [run for run in self.runs if run.config.pe.label == label]

    def variants(self) -> list[Variant]:
        """Each variant, by label."""
        return [
            _variant(self.of(label)) for label in sorted({run.config.pe.label for run in self.runs})
        ]


@dataclass(frozen=True)
class Report:
    """What tables and figures show."""

    group: Group
    reference: str
    rows: tuple[Row, ...]
    tau: float | None  # None: undefined, with fewer than two variants in both
    tau_n: int

    @property
    def reference_name(self) -> str:
        """The reference as a person writes it."""
        return next((row.name for row in self.rows if row.label == self.reference), self.reference)


def build(group: Group, reference: str | None) -> Report:
    """Compare a group's runs.

    Args:
        group: as `read_group` gives it.
        reference: a label of the group; None: qk_rope, and no deltas if the group has none.
    Raises:
        ReportError: the group has no such variant.
    """
    variants = group.variants()
    labels = [variant.label for variant in variants]
    if reference is not None and reference not in labels:
        raise ReportError(
            f"--reference {reference} is no variant of group {group.name}, which has {', '.join(labels)}"
        )
    rows = compare(variants, reference or REFERENCE, published.LOSSES)
    tau, tau_n = kendall_tau(shared_means(variants), published.LOSSES)
    return Report(group, reference or REFERENCE, tuple(rows), tau, tau_n)


def _variant(runs: list[Run]) -> Variant:
    pe = runs[0].config.pe
    statuses = {run.status for run in runs}
    order: tuple[Status, ...] = ("finished", "diverged", "unfinished")
    losses = {run.config.seed: run.loss_nats for run in runs if run.status == "finished"}
    return Variant(
        pe.label,
        runs[0].variant_name,
        pe.rotate,
        losses,
        next(status for status in order if status in statuses),
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def find_group(runs: Path, name: str | None) -> Path:
    """The folder of the group `name`, or of the only one.

    Raises:
        ReportError: there is none, not this one, or more than one to choose from.
    """
    groups = [
        folder.name
        for folder in _folders(runs)
        if any(_is_run(run) for pe in _folders(folder) for run in _folders(pe))
    ]
    if not groups:
        raise ReportError(f"{runs} holds no runs (<group>/<pe>/seed<k>); {HOW_TO}")
    if name is not None:
        if name not in groups:
            raise ReportError(f"{runs} holds no group {name}; there is {', '.join(groups)}")
        return runs / name
    if len(groups) > 1:
        raise ReportError(
            f"{runs} holds several groups, and a table is of one; --group takes {', '.join(groups)}"
        )
    return runs / groups[0]


def read_group(folder: Path) -> Group:
    """Read every run of a group, and refuse what may not share a table.

    Raises:
        ReportError: see the checks below. RecordError: a file cannot be read.
    """
    runs, left_out = [], []
    for pe in _folders(folder):
        inside = _folders(pe)
        for place in inside:
            if _is_run(place):
                runs.append(_read_run(place))
            else:
                left_out.append("/".join(place.parts[-3:]))
        if not inside:
            left_out.append("/".join(pe.parts[-2:]))
    runs.sort(key=lambda run: (run.config.pe.label, run.config.seed, run.where))
    _check_places(runs)
    for run in runs:
        _check_result(run)
        _check_metrics(run)
    _check_configs(runs)
    _check_hashes(runs)
    return Group(folder.name, tuple(runs), tuple(left_out))


def _folders(parent: Path) -> list[Path]:
    """Folders by name; hidden ones are somebody's own (`.seed0.old-1` is what run.fresh moves aside)."""
    if not parent.is_dir():
        return []
    return sorted(
        path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CONFIG, METRICS, RESULT))


def _read_run(folder: Path) -> Run:
    where = "/".join(folder.parts[-3:])
    return Run(
        folder,
        where,
        read_config(folder),
        read_result(folder),
        read_metrics(folder),
        read_env(folder),
    )


# -- refusals ----------------------------------------------------------------------------------------------------------


def _check_places(runs: list[Run]) -> None:
    """Each (variant, seed) once, in the folder that is named after it."""
    for first, second in pairwise(runs):
        if (first.config.pe.label, first.config.seed) == (
            second.config.pe.label,
            second.config.seed,
        ):
            raise ReportError(
                f"{first.folder} and {second.folder} are both {first.config.name}; keep one of them"
            )
    for run in runs:
        expected = f"{run.config.pe.label}/seed{run.config.seed}"
        if run.where.partition("/")[2] != expected:
            raise ReportError(
                f"{run.folder} holds a run that belongs in {expected}: moved, or its config edited"
            )


def _check_result(run: Run) -> None:
    """result.json has its keys, and is of this very config."""
    result, config, path = run.result, run.config, run.folder / RESULT
    if result is None:
        return
    from_config = {
        "pe": config.pe.label,
        "rotate": list(config.pe.rotate),
        "seed": config.seed,
        "group_sha256": config.group_sha256,
        "config_sha256": config.config_sha256,
    }
    for key, value in from_config.items():
        if result.get(key) != value:
            raise ReportError(
                f"{path} says {key}={result.get(key)!r}, and by its config.yaml it is {value!r}: "
                "one of them was edited, or is another run's"
            )


def _check_metrics(run: Run) -> None:
    """The curve is of numbers, and ends where result.json says that the run did."""
    path, rows, result = run.folder / METRICS, run.metrics, run.result
    for row in rows:
        where = path.with_name(f"{METRICS} step {row['step']}")
        check_fields(
            where, row, {"train/loss": float} | ({"val/loss": float} if "val/loss" in row else {})
        )
    if result is None or (run.status == "diverged" and not rows):
        return
    last = rows[-1] if rows else {}
    expected = {"train/loss": result["train/loss_last"]}
    if run.status == "finished":
        expected |= {
            "step": result["steps"],
            "tokens": result["tokens"],
            "val/loss": result["val/loss"],
        }
    for key, value in expected.items():
        if last.get(key) != value:
            raise ReportError(
                f"{path} ends with {key}={last.get(key)!r}, and by {RESULT} the run ended with {value!r}: "
                "rows are missing, or one of them was edited"
            )
    if last.get("step", 0) > result["steps"]:
        raise ReportError(
            f"{path} goes on to step {last['step']}, past the {result['steps']} of {RESULT}"
        )
    _check_against_checkpoint(run)


def _check_against_checkpoint(run: Run) -> None:
    """The newest checkpoint, where one was kept, knows what the curve was when it was saved."""
    states = sorted((run.folder / "checkpoints").glob("step_*/state.json"))
    if not states:
        return
    state = read_json(states[-1])
    check_fields(states[-1], state, {"metrics": dict})
    mark = state["metrics"]
    check_fields(states[-1], mark, MARK_FIELDS)
    held = (run.folder / METRICS).read_bytes()[: mark["bytes"]]
    if hashlib.sha256(held).hexdigest() != mark["sha256"]:
        raise ReportError(
            f"{run.folder / METRICS} is not what it was when {states[-1].parent.name} was saved: edited"
        )


def _check_configs(runs: list[Run]) -> None:
    """One group by its hash, and one meaning for each label."""
    for run in runs:
        if run.config.group_sha256 != runs[0].config.group_sha256:
            keys = _differing(runs[0], run, without=("pe", "seed"))
            raise ReportError(
                f"{runs[0].folder} and {run.folder} are no rows of one group ({keys})"
            )
    for first, second in pairwise(runs):
        if first.config.pe.label == second.config.pe.label and first.config.pe != second.config.pe:
            keys = _differing(first, second, without=("seed",))
            raise ReportError(
                f"{first.folder} and {second.folder} are two variants under one name ({keys})"
            )


def _differing(first: Run, second: Run, without: tuple[str, ...]) -> str:
    old, new = first.config.numeric_dict(), second.config.numeric_dict()
    return "; ".join(
        differing_keys(
            *({k: v for k, v in values.items() if k not in without} for values in (old, new))
        )
    )


def _check_hashes(runs: list[Run]) -> None:
    """The same corpus everywhere; the same initial weights and tokens within a seed; the same size of model.

    Learned frequencies are parameters: a variant that has them counts more, and its initial weights hash differently.
    A diverged run has read only some of the tokens, so that its order cannot be told from its hash.
    """
    done = [run for run in runs if run.result is not None]
    same_weights = [run for run in done if not run.config.pe.trainable]
    finished = [run for run in done if run.status == "finished"]
    _check_equal("data_sha256", "read different corpora", ((run, None) for run in done))
    _check_equal(
        "init_sha256",
        "began at different weights",
        ((run, run.config.seed) for run in same_weights),
    )
    _check_equal(
        "order_sha256", "saw different tokens", ((run, run.config.seed) for run in finished)
    )
    _check_equal("params", "differ in parameters", ((run, None) for run in same_weights))


def _check_equal(key: str, what: str, runs: Iterable[tuple[Run, Hashable]]) -> None:
    """`key` of result.json is the same in all runs of a block."""
    blocks: dict[Hashable, list[Run]] = defaultdict(list)
    for run, block in runs:
        blocks[block].append(run)
    for members in blocks.values():
        for run in members[1:]:
            assert run.result is not None
            assert members[0].result is not None
            if run.result[key] != members[0].result[key]:
                raise ReportError(
                    f"{members[0].folder} and {run.folder} {what}, and cannot be compared "
                    f"({key} {members[0].result[key]!s:.12} and {run.result[key]!s:.12})"
                )
