"""Runs as their folders say: read and verified, each the complete record of one run. No torch."""

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from rope_exp.config import RunConfig
from rope_exp.errors import RecordError
from rope_exp.folder import (
    CONFIG,
    ENV,
    METRICS,
    RESULT,
    checked,
    read_config,
    read_env,
    read_metrics,
    read_probes,
    read_result,
)

Status = Literal["finished", "diverged", "unfinished"]
# The test of differences that a campaign's file states; its records repeat it.
Test = Literal["paired"]

# Values of result.json that repeat the last row of metrics.jsonl.
_LAST_ROW = {"train/loss": "train/loss_last"}
_LAST_ROW_OF_FINISHED = _LAST_ROW | {"step": "steps", "tokens": "tokens", "val/loss": "val/loss"}
# Types of a row's losses, in addition to those of rope_exp/folder.py.
_Losses = TypedDict("_Losses", {"train/loss": FiniteFloat, "val/loss": FiniteFloat})


class ReportError(RecordError):
    """Records that contradict themselves or one another; the message names the folders."""


@dataclass(frozen=True)
class Run:
    """One run, with the content of its folder or its record.

    Attributes:
        folder: <runs>/<group>/<pe>/seed<k>, or the file that is its record.
        result: {} while the run is not done.
        where: <group>/<pe>/seed<k>, or <campaign>/<cell>: the same wherever the runs lie.
        group: the group of its folder, or the campaign of its record.
        row: the row of its campaign's cell; else empty, like its factors.
        probes: its model's answers, by probe; NaN replaces a number that is not finite.
        test: its campaign's way of judging differences; None: as in docs/paper/protocol.md.
    """

    folder: Path
    config: RunConfig
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    env: dict[str, Any]
    where: str
    group: str
    row: str = ""
    factors: dict[str, Any] = field(default_factory=dict)
    probes: dict[str, Any] = field(default_factory=dict)
    test: Test | None = None

    @property
    def status(self) -> Status:
        """The status in result.json; unfinished while there is none."""
        return self.result.get("status", "unfinished")

    @property
    def loss(self) -> float | None:
        """A finished run's validation loss, in its data's unit."""
        return self.result.get("val/loss")

    @property
    def variant_name(self) -> str:
        """The name for people: VO-RoPE, or QK-RoPE base500000 if a key departs from the variant."""
        pe = self.config.pe
        return f"{pe.name} {pe.label.partition('-')[2]}".rstrip()

    @property
    def epochs(self) -> float | None:
        """The planned passes over the corpus; None if env.json does not give its size."""
        sizes = self.env.get("corpus", {}).get("tokens")
        return self.config.train.num_tokens / sizes["train"] if sizes else None

    def check(self) -> None:
        """Refuse a result that contradicts the config, the initial weights or the curve."""
        config = self.config
        expected = {
            "pe": config.pe.label,
            "rotate": config.pe.rotate,
            "seed": config.seed,
            "group_sha256": config.group_sha256,
            "config_sha256": config.config_sha256,
            "init_weights": config.init_weights,
        }
        init_weights = self.env.get("init_from", {}).get("weights_sha256")
        stated = self.result | {"init_weights": init_weights}
        for key, value in expected.items():
            if stated[key] != value:
                file = self._file(ENV if key == "init_weights" else RESULT)
                raise ReportError(
                    f"{file} says {key}={stated[key]!r}, but by its config it is {value!r}: "
                    "one of them was edited, or belongs to another run"
                )

        last = [{}, *self.metrics][-1]
        ends = _LAST_ROW_OF_FINISHED if self.status == "finished" else _LAST_ROW
        for key, name in ends.items():
            if last.get(key) != self.result[name]:
                raise ReportError(
                    f"{self._file(METRICS)} ends with {key}={last.get(key)!r}, but by {RESULT} the "
                    f"run ended with {self.result[name]!r}: rows are missing, or one was edited"
                )
        if last.get("step", 0) > self.result["steps"]:
            raise ReportError(
                f"{self._file(METRICS)} continues to step {last['step']}, past the "
                f"{self.result['steps']} of {RESULT}"
            )

    def _file(self, name: str) -> Path:
        return self.folder / name if self.folder.is_dir() else self.folder


def perplexity(loss: float) -> float:
    """Return e to a loss in nats per token."""
    # Past this a float overflows.
    return math.exp(loss) if loss < 709 else math.inf


def bits_per_byte(loss: float, config: RunConfig, env: Mapping[str, Any]) -> float | None:
    """Return a loss in nats per token as bits per byte of held-out text; None if it has none."""
    corpus = env.get("corpus", {})
    sizes = [corpus.get(key, {}).get("validation") for key in ("tokens", "text_bytes")]
    if None in sizes or not config.causal:
        return None
    num_tokens, num_bytes = sizes
    bits: float = loss * num_tokens / num_bytes / math.log(2)
    return bits


def find_groups(runs: Path, pattern: str | None, *, several: bool = False) -> list[Path]:
    """Return the groups below `runs` whose names match a pattern; one only, unless `several`."""
    groups = [
        path.name for path in sorted(runs.glob("[!.]*")) if any(map(is_run, folders_in(path)))
    ]
    if not groups:
        raise ReportError(
            f"{runs} holds no runs (<group>/<pe>/seed<k>); `rope-exp train +experiment=nine` "
            "trains the nine, and a run with a custom run.dir must be moved to such a folder"
        )

    names = fnmatch.filter(groups, pattern or "*")
    if not names or (len(names) > 1 and not several):
        raise ReportError(
            f"{runs} holds {len(names) or 'no'} groups {pattern or ''}, but a table takes one (or "
            "several, with --factors and the keys that differ, such as pe optim.lr). Available for "
            f"--group: {', '.join(names or groups)}"
        )
    return [runs / name for name in names]


def read_runs(groups: Iterable[Path]) -> tuple[list[Run], dict[str, str]]:
    """Return every run of some groups, and the folders that were left out, with the reason.

    Raises:
        ReportError: a folder is edited, or holds a run that belongs elsewhere.
        RecordError: no run can be read.
    """
    runs = []
    left_out = {}
    unreadable = []
    for group in groups:
        for folder in folders_in(group):
            name = str(folder.relative_to(group.parent))
            if not is_run(folder):
                left_out[name] = "it holds no run <pe>/seed<k>"
                continue
            try:
                run = read_run(folder)
            except ReportError:
                # Edited or moved: without it, the table would hide that.
                raise
            except RecordError as error:
                left_out[name] = str(error)
                unreadable.append(error)
                continue
            expected = f"{run.config.pe.label}/seed{run.config.seed}"
            if not folder.match(expected):
                raise ReportError(
                    f"{folder} holds a run that belongs in {expected}: moved, or its config edited"
                )
            runs.append(run)
    if unreadable and not runs:
        raise unreadable[0]
    return runs, left_out


def folders_in(group: Path) -> list[Path]:
    """Return <pe>/<seed> folders by name, but no hidden ones: an old run is `.seed0.old-1`."""
    return sorted(path for path in group.glob("[!.]*/[!.]*") if path.is_dir())


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, complete or damaged."""
    return any((folder / name).exists() for name in (CONFIG, METRICS, RESULT))


def read_run(folder: Path) -> Run:
    """Read one run's folder, wherever it lies; its files must agree with one another."""
    parts = folder.absolute().parts
    result = read_result(folder) or {}
    run = Run(
        folder,
        read_config(folder),
        result,
        read_metrics(folder),
        read_env(folder),
        where="/".join(parts[-3:]),
        group=parts[-3],
        probes=with_nan(read_probes(folder, result)),
    )
    for row in run.metrics:
        # A row without an evaluation is checked as if it had one.
        checked(folder / f"{METRICS} step {row['step']}", {"val/loss": 0.0} | row, _Losses)
    if run.result:
        run.check()
    return run


def with_nan(answers: Any) -> Any:
    """Return a probe's answers with NaN for null, which marks a loss that is not finite."""
    if isinstance(answers, dict):
        return {key: with_nan(value) for key, value in answers.items()}
    if isinstance(answers, list):
        return [with_nan(value) for value in answers]
    return math.nan if answers is None else answers
