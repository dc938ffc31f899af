"""`rope-exp campaign`: run what is left of a campaign of many runs, here or on a cluster."""

import signal
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from rope_exp.campaign import campaign as campaigns
from rope_exp.campaign.campaign import Progress
from rope_exp.campaign.cells import load_campaign
from rope_exp.commands._parser import CONFIG_DIR, DEFAULT_RECORDS, Parser
from rope_exp.commands._rank import refuse_rank
from rope_exp.compose import compose_runs
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.errors import ConfigError
from rope_exp.identity import convert
from rope_exp.sections import Count
from rope_exp.slurm import FOLDER, Queue, submit

# A campaign that runs here takes this key, and so does one on a cluster.
EXCEED_MEMORY = "launch.exceed_memory"
# The keys that say how a cluster runs a campaign; all of hydra.launcher does, too.
ALLOWED = ("launch", "launch.cells_per_job", "launch.runs_per_gpu", EXCEED_MEMORY)


def main(argv: list[str]) -> int:
    """Run the cells of a campaign that have no record yet, and write a record of each that ends."""
    started = time.monotonic()
    parser = Parser("campaign", "Run the cells of a campaign that have no record yet.")
    add = parser.add_argument
    file = "a file campaign/NAME.yaml of --config-dir or of configs/, such as example"
    add("name", metavar="NAME", help=file)
    about = f"submit its cells as jobs, with hydra.launcher.* and {', '.join(ALLOWED[1:])}; "
    about += f"{EXCEED_MEMORY}=true alone runs them here"
    # Without a default argparse would name it as missing, too.
    add("overrides", nargs="*", default=[], metavar="launch=slurm", help=about)
    add("--hours", type=float, help="begin to stop after so many, each run with a checkpoint")
    add("--on-gpus", type=int, metavar="N", help="use this machine's GPUs, with N runs on each")
    add("--list", action="store_true", help="print its cells, and run none")
    add("--pack", action="store_true", help="only put its records into RECORDS/NAME.jsonl.gz")
    add("--records", type=Path, default=DEFAULT_RECORDS, help="(%(default)s)")
    add("--config-dir", **CONFIG_DIR)
    args = parser.parse_intermixed_args(argv)
    refuse_rank("the campaign")
    if args.pack:
        print(campaigns.pack(args.records, args.name))
        return 0

    campaign = load_campaign(args.name, args.config_dir, DEFAULT_OUTPUT)
    if args.on_gpus is not None:
        places = convert(Count, args.on_gpus, "--on-gpus")
        campaign = campaign.with_launch(device="cuda", max_parallel="auto", runs_per_gpu=places)
    keys = _allowed_keys(args.overrides)
    if EXCEED_MEMORY in keys:
        launch = compose_runs(args.overrides, args.config_dir).configs[0].launch
        campaign = campaign.with_launch(exceed_memory=launch.exceed_memory)
    progress = Progress(campaign, args.records)
    queue = Queue(FOLDER / args.name)
    if args.list:
        submitted = queue.describe([cell.name for cell in progress.left])
        print("\n".join(progress.lines(submitted)))
        return 0
    if keys - {EXCEED_MEMORY}:
        for option, value in (("--hours", args.hours), ("--on-gpus", args.on_gpus)):
            if value is not None:
                raise ConfigError(option, value, "is for a campaign that runs here")
        print(submit_campaign(progress, args.overrides, args.config_dir, queue))
        return 0

    if args.hours is not None:
        if not 0 < args.hours < 1e6:
            raise ConfigError("--hours", args.hours, "must be above 0 and below 1,000,000")
        left = 3600 * args.hours - (time.monotonic() - started)
        # A signal of its own, so that a scheduler's or a person's is no repetition of it.
        signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3))
    return campaigns.run_campaign(progress)


def _allowed_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys of a campaign's overrides; refuse keys that its file decides."""
    keys = set()
    for override in overrides:
        key = override.lstrip("+").partition("=")[0]
        if key not in ALLOWED and not key.startswith("hydra.launcher."):
            reason = f"must be {', '.join(ALLOWED)} or hydra.launcher.*: the campaign's file says "
            raise ConfigError(key, ..., f"{reason}everything else about its runs")
        keys.add(key)
    return keys


def submit_campaign(
    progress: Progress, overrides: Sequence[str], config_dir: Path | None, queue: Queue
) -> str:
    """Submit the cells without a record to a cluster.

    Args:
        progress: of the campaign, with its folder of records.
        overrides: launch=slurm, and other keys that say how the cluster runs the cells.
        config_dir: the user's folder of configs; None: there is none.
        queue: of the campaign; the new jobs are added.
    Returns:
        A line that says what was submitted.
    Raises:
        ConfigError: an override says something else, or the launcher cannot follow it.
        ChildProcessError: the cluster refuses the jobs.
    """
    keys = _allowed_keys(overrides)
    composed = compose_runs(overrides, config_dir)
    launch = composed.configs[0].launch
    launcher = composed.tree.hydra.launcher
    if all(cell.config.launch.device == "cpu" for cell in progress.left):
        OmegaConf.update(launcher, "gpus_per_node", None)
    campaigns.check_here(progress)
    name = progress.campaign.name
    # A node reads the campaign's file again, which does not have these.
    train = partial(run_cells, name, config_dir, progress.records, launch.runs_per_gpu)
    if EXCEED_MEMORY in keys:
        train = partial(train, exceed_memory=launch.exceed_memory)
    cells = {cell.name: cell.name for cell in progress.left}
    return submit(launcher, launch.cells_per_job, queue, cells, train)


def run_cells(
    name: str,
    config_dir: Path | None,
    records: Path,
    runs_per_gpu: int,
    cells: Collection[str],
    *,
    exceed_memory: bool | None = None,
) -> int:
    """Run some cells of a campaign, as one job of a cluster does.

    Args:
        name: the campaign's.
        config_dir: the folder with its file, besides configs/.
        records: where the record of each cell is written.
        runs_per_gpu: launch.runs_per_gpu of the command that submitted them.
        cells: the names of the job's cells.
        exceed_memory: launch.exceed_memory of that command; None: what the campaign's file says.
    Returns:
        The exit code, as `run_campaign` does.
    """
    campaign = load_campaign(name, config_dir, DEFAULT_OUTPUT)
    campaign = campaign.with_launch(runs_per_gpu=runs_per_gpu)
    if exceed_memory is not None:
        campaign = campaign.with_launch(exceed_memory=exceed_memory)
    return campaigns.run_campaign(Progress(campaign, records, cells))
