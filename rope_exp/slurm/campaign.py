"""Submission of a campaign's cells to SLURM: its words of the command line say only how."""

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from rope_exp.campaign.campaign import Progress, check_here, run_campaign
from rope_exp.campaign.cells import load_campaign
from rope_exp.compose import compose_jobs
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.errors import ConfigError
from rope_exp.signals import interrupt, on_signal
from rope_exp.slurm.cluster import Queue, submit

# The keys that say how; all of hydra.launcher does, too.
ALLOWED = ("launch", "launch.cells_per_job", "launch.runs_per_gpu")


def submit_campaign(
    progress: Progress, words: Sequence[str], config_dir: Path | None, queue: Queue
) -> str:
    """Submit the cells without a record to a cluster by overrides of the launcher; see `submit`."""
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if key not in ALLOWED and not key.startswith("hydra.launcher."):
            reason = f"must be {', '.join(ALLOWED)} or hydra.launcher.*: the campaign's file says "
            raise ConfigError(key, ..., f"{reason}everything else about its runs")
    jobs = compose_jobs(words, config_dir)
    launch = jobs.configs[0].launch
    launcher = jobs.tree.hydra.launcher
    if all(cell.config.launch.device == "cpu" for cell in progress.left):
        OmegaConf.update(launcher, "gpus_per_node", None)
    check_here(progress)
    name = progress.campaign.name
    run = partial(run_cells, name, config_dir, progress.records, launch.runs_per_gpu)
    cells = {cell.name: cell.name for cell in progress.left}
    return submit(launcher, launch.cells_per_job, queue, cells, run)


def run_cells(
    name: str, config_dir: Path | None, records: Path, runs_per_gpu: int, cells: Collection[str]
) -> int:
    """Run some cells of a campaign, as one job of a cluster does; see `run_campaign`."""
    on_signal(interrupt)
    campaign = load_campaign(name, config_dir, DEFAULT_OUTPUT)
    return run_campaign(Progress(campaign.with_launch(runs_per_gpu=runs_per_gpu), records, cells))
