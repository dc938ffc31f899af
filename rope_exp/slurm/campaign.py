"""Submission of a campaign's cells to SLURM: its words of the command line say only how."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rope_exp.campaign.campaign import check_here, run_campaign
from rope_exp.campaign.cells import load_campaign
from rope_exp.campaign.progress import Progress
from rope_exp.compose import compose_jobs
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.errors import ConfigError
from rope_exp.signals import interrupt, on_signal
from rope_exp.slurm.cluster import Cluster
from rope_exp.slurm.queue import Queue

# Keys of `launch` about the jobs of a cluster.
OF_JOBS = ("launch.cells_per_job", "launch.runs_per_gpu")


def submit_campaign(
    progress: Progress, words: Sequence[str], config_dir: Path | None, queue: Queue
) -> str:
    """Submit the cells without a record to a cluster, and say what was submitted.

    Args:
        words: overrides of the launcher.
        queue: of the campaign.
    Raises:
        ConfigError: a word is not about the launcher; see also `Cluster.submit`.
        ChildProcessError: SLURM refuses.
    """
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if not (key in ("launch", *OF_JOBS) or key.startswith("hydra.launcher.")):
            allowed = f"must be launch, {', '.join(OF_JOBS)} or hydra.launcher.*: the campaign's "
            raise ConfigError(key, ..., f"{allowed}file says everything else about its runs")
    jobs = compose_jobs(words, config_dir)
    launch = jobs.configs[0].launch
    cluster = Cluster.of(jobs.tree.hydra.launcher, launch.cells_per_job, words)
    campaign = progress.campaign
    check_here(campaign, progress.left)
    if all(cell.config.launch.device == "cpu" for cell in progress.left):
        cluster = replace(cluster, launcher={**cluster.launcher, "gpus_per_node": None})
    places = (campaign.name, config_dir, progress.records)
    run = partial(run_cells, *places, launch.runs_per_gpu)
    return cluster.submit(queue, {cell.name: cell.name for cell in progress.left}, run)


def run_cells(
    name: str,
    config_dir: Path | None,
    records: Path,
    runs_per_gpu: int,
    cells: Collection[str],
) -> int:
    """Run some cells of a campaign, as one job of a cluster does; see `run_campaign`."""
    on_signal(interrupt)
    campaign = load_campaign(name, config_dir, DEFAULT_OUTPUT)
    progress = Progress(campaign.with_launch(runs_per_gpu=runs_per_gpu), records)
    progress.only = cells
    return run_campaign(progress)
