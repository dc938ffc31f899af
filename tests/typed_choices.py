"""Each file of a choice folder, against the protocol of its folder: for mypy, which reads it.

`tests/test_house.py` compares these lists with the folders and with their loaders.
"""

from typing import Protocol

from rope_exp.__main__ import Command
from rope_exp.attention import AttentionLeaf
from rope_exp.attn import decay, latent, linear, retention, shared
from rope_exp.commands import campaign as campaign_command
from rope_exp.commands import check_records, export, generate, plan, train
from rope_exp.commands import prepare as prepare_command
from rope_exp.commands import report as report_command
from rope_exp.commands import sweep as sweep_command
from rope_exp.config import Objective, ProbeRule
from rope_exp.corpora import files as corpus_files
from rope_exp.corpora import hub
from rope_exp.corpus import CorpusLeaf
from rope_exp.decoder import PositionLeaf
from rope_exp.figures import cached, curves, forest, grid
from rope_exp.figures import distance as distance_figure
from rope_exp.figures import probes as probes_figure
from rope_exp.folder import AnswerLeaf
from rope_exp.notes import assumptions, runs, summary, verdicts
from rope_exp.notes import files as files_note
from rope_exp.objective import mlm
from rope_exp.optim import muon
from rope_exp.optimizer import OptimizerLeaf
from rope_exp.position import alibi, learned, sinusoidal, t5
from rope_exp.probes import (
    ablation,
    answers,
    distance,
    drift,
    extension,
    fit,
    floors,
    positions,
    repeat,
    shift,
    token_shift,
    windows,
)
from rope_exp.report import FigureLeaf, ReportLeaf
from rope_exp.schedule import wsd
from rope_exp.step import ScheduleLeaf
from rope_exp.tasks import addition, copy, repeats, retrieval, spikes
from rope_exp.tasks._rows import TaskLeaf
from rope_exp.trackers import tensorboard, trackio, wandb
from rope_exp.trackers._base import BaseTracker
from rope_exp.trainer import Probe


class ProbeLeaf(Probe, ProbeRule, ReportLeaf, AnswerLeaf, Protocol):
    """A file of probes/: asked, perhaps refused, and part of a record and of a report."""


ATTN: list[AttentionLeaf] = [decay, latent, linear, retention, shared]
COMMANDS: list[Command] = [
    campaign_command,
    check_records,
    export,
    generate,
    plan,
    prepare_command,
    report_command,
    sweep_command,
    train,
]
CORPORA: list[CorpusLeaf] = [corpus_files, hub]
FIGURES: list[FigureLeaf] = [
    cached,
    curves,
    distance_figure,
    forest,
    grid,
    probes_figure,
]
NOTES: list[ReportLeaf] = [assumptions, files_note, runs, summary, verdicts]
OBJECTIVE: list[Objective] = [mlm]
OPTIM: list[OptimizerLeaf] = [muon]
POSITION: list[PositionLeaf] = [alibi, learned, sinusoidal, t5]
PROBES: list[ProbeLeaf] = [
    ablation,
    answers,
    distance,
    drift,
    extension,
    fit,
    floors,
    positions,
    repeat,
    shift,
    token_shift,
    windows,
]
SCHEDULE: list[ScheduleLeaf] = [wsd]
TASKS: list[TaskLeaf] = [addition, copy, repeats, retrieval, spikes]
TRACKERS: list[type[BaseTracker]] = [tensorboard.Tracker, trackio.Tracker, wandb.Tracker]
