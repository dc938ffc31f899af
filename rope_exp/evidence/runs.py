"""Reading and verification of run folders: each must be the complete record of one run.

A `ReportError` is one sentence that names the folder. No torch.
"""

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from rope_exp.config.run import RunConfig
from rope_exp.plan.campaign_file import Test
from rope_exp.run.folder import (
    CONFIG,
    ENV,
    RESULT,
    checked,
    read_config,
    read_env,
    read_probes,
    read_result,
)
from rope_exp.run.metrics import METRICS, read_metrics
from rope_exp.system.errors import RecordError

Status = Literal["finished", "diverged", "unfinished"]


# Types of the values that are read here, in addition to those of rope_exp/run/folder.py.
_Row = TypedDict("_Row", {"train/loss": FiniteFloat, "val/loss": FiniteFloat})


# Values of result.json that repeat config.yaml, and the last row of metrics.jsonl.
_FROM_CONFIG = {
    "pe": "pe.label",
    "rotate": "pe.rotate",
    "seed": "seed",
    "group_sha256": "group_sha256",
    "config_sha256": "config_sha256",
}
_LAST_ROW = {"train/loss": "train/loss_last"}
_LAST_ROW_OF_FINISHED = _LAST_ROW | {"step": "steps", "tokens": "tokens", "val/loss": "val/loss"}


class ReportError(RecordError):
    """Records that contradict themselves or one another; the message names the folders."""


def perplexity(loss: float) -> float:
    """Return e to a loss in nats per token."""
    # Past this a float overflows.
    return math.exp(loss) if loss < 709 else math.inf


def bits_per_byte(loss: float, config: RunConfig, env: Mapping[str, Any]) -> float | None:
    """Return a loss in nats per token as bits per byte of text, by the whole held-out side.

    None if the run does not predict text token after token, or does not record both counts.
    """
    corpus = env.get("corpus", {})
    sizes = [corpus.get(key, {}).get("validation") for key in ("tokens", "text_bytes")]
    if None in sizes or not config.causal:
        return None
    num_tokens, num_bytes = sizes
    bits: float = loss * num_tokens / num_bytes / math.log(2)
    return bits


@dataclass(frozen=True)
class Run:
    """One run, with the content of its folder or its record.

    Attributes:
        folder: <runs>/<group>/<pe>/seed<k>, or the file that is its record.
        result: {} while the run is not done.
        where: <group>/<pe>/seed<k>, or <campaign>/<cell>, so that tables do not depend on the
            location of the runs.
        group: the group of its folder, or the campaign of its record.
        row: the row of its campaign's cell; else empty, like its factors.
        probes: its model's answers, by probe; NaN replaces a number that is not finite.
        test: its campaign's way of judging differences; None: as in docs/protocol.md.
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
        return self.result["status"] if self.result else "unfinished"

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


def find_groups(runs: Path, pattern: str | None, *, several: bool = False) -> list[Path]:
    """Find the folders of groups by name.

    Args:
        runs: the folder of groups.
        pattern: a group's name, with * for anything; None: any.
        several: whether more than one may match.
    Raises:
        ReportError: there is none, none of this name, or more than one to choose from.
    """
    groups = [
        group.name
        for group in folders_in(runs)
        if any(is_run(folder) for pe in folders_in(group) for folder in folders_in(pe))
    ]
    if not groups:
        raise ReportError(
            f"{runs} holds no runs (<group>/<pe>/seed<k>); `rope-exp train +experiment=nine` "
            "trains the nine, and a run with a custom run.dir must be moved to such a folder"
        )

    found = fnmatch.filter(groups, pattern or "*")
    if not found or (len(found) > 1 and not several):
        named = f"groups {pattern}" if pattern else "groups"
        raise ReportError(
            f"{runs} holds {len(found) or 'no'} {named}, but a table takes one (or several, with "
            "--factors and the keys that differ, such as pe optim.lr). Available for --group: "
            f"{', '.join(found or groups)}"
        )
    return [runs / name for name in found]


def read_runs(groups: Iterable[Path]) -> tuple[list[Run], dict[str, str]]:
    """Read every run of some groups.

    Returns:
        The runs; and the folders that were left out, with the reason: they hold no run, or one that
        cannot be read.
    Raises:
        ReportError: a folder's files do not agree with one another.
        RecordError: no run can be read.
    """
    runs = []
    left_out = {}
    unreadable = []
    for group in groups:
        for pe in folders_in(group):
            for folder in folders_in(pe) or [pe]:
                name = str(folder.relative_to(group.parent))
                if folder == pe or not is_run(folder):
                    left_out[name] = "it holds no run <pe>/seed<k>"
                    continue
                try:
                    runs.append(_placed(read_run(folder)))
                except ReportError:
                    # Edited or moved: without it, the table would hide that.
                    raise
                except RecordError as error:
                    left_out[name] = str(error)
                    unreadable.append(error)
    if unreadable and not runs:
        raise unreadable[0]
    return runs, left_out


def folders_in(parent: Path) -> list[Path]:
    """Return folders by name, except hidden ones: run.fresh moves a run to `.seed0.old-1`."""
    inside = sorted(parent.iterdir()) if parent.is_dir() else []
    return [path for path in inside if path.is_dir() and not path.name.startswith(".")]


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, complete or damaged."""
    return any((folder / name).exists() for name in (CONFIG, METRICS, RESULT))


def read_run(folder: Path) -> Run:
    """Read one run's folder, wherever it lies.

    Raises:
        ReportError: its files do not agree with one another.
        RecordError: a file cannot be read.
    """
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
        checked(folder / f"{METRICS} step {row['step']}", {"val/loss": 0.0} | row, _Row)

    if run.result:
        check_identity(run)
        check_end(run)
    return run


def with_nan(answers: Any) -> Any:
    """Return a probe's answers with NaN for null, which marks a loss that is not finite."""
    if isinstance(answers, dict):
        return {key: with_nan(value) for key, value in answers.items()}
    if isinstance(answers, list):
        return [with_nan(value) for value in answers]
    return math.nan if answers is None else answers


# -- refusals --------------------------------------------------------------------------------------


def _placed(run: Run) -> Run:
    """Return a run, but refuse one in a folder that is named after another."""
    expected = f"{run.config.pe.label}/seed{run.config.seed}"
    if not run.folder.match(expected):
        raise ReportError(
            f"{run.folder} holds a run that belongs in {expected}: moved, or its config edited"
        )
    return run


def check_identity(run: Run) -> None:
    """Check that the result belongs to this config, and that the run started from its weights."""
    began = run.env.get("init_from", {}).get("weights_sha256")
    if began != run.config.init_weights:
        raise ReportError(
            f"{_file(run, ENV)} says that the run started from the weights {began!s:.12}, but by "
            f"its config it started from {run.config.init_weights!s:.12}"
        )
    for key, name in _FROM_CONFIG.items():
        value = attrgetter(name)(run.config)
        if run.result[key] != value:
            raise ReportError(
                f"{_file(run, RESULT)} says {key}={run.result[key]!r}, but by its config it "
                f"is {value!r}: one of them was edited, or belongs to another run"
            )


def check_end(run: Run) -> None:
    """Check that the curve ends as result.json says that the run did."""
    path = _file(run, METRICS)
    last = [{}, *run.metrics][-1]
    same = _LAST_ROW_OF_FINISHED if run.status == "finished" else _LAST_ROW
    for key, name in same.items():
        if last.get(key) != run.result[name]:
            raise ReportError(
                f"{path} ends with {key}={last.get(key)!r}, but by {RESULT} the run ended with "
                f"{run.result[name]!r}: rows are missing, or one of them was edited"
            )
    if last.get("step", 0) > run.result["steps"]:
        raise ReportError(
            f"{path} continues to step {last['step']}, past the {run.result['steps']} of {RESULT}"
        )


def _file(run: Run, name: str) -> Path:
    """Return the file with a fact of a run: one in its folder, or its record."""
    return run.folder / name if run.folder.is_dir() else run.folder
