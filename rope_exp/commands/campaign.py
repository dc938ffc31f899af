"""`rope-exp campaign`: run what is left of a campaign of many runs."""

import math
import time
from pathlib import Path

from rope_exp.commands._parser import CONFIG_DIR, Parser
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.errors import ConfigError
from rope_exp.signals import interrupt, on_signal


def main(words: list[str]) -> int:
    """Run the cells of a campaign that have no record yet, and write a record of each that ends.

    Campaigns are defined in configs/campaign/*.yaml. Commit the records: a cell with a record is
    done on every machine.
    """
    started = time.monotonic()
    from rope_exp.campaign.campaign import pack, run_campaign
    from rope_exp.campaign.cells import load_campaign
    from rope_exp.campaign.file import campaign_files
    from rope_exp.campaign.progress import Progress
    from rope_exp.ranks import is_rank
    from rope_exp.records import DEFAULT_RECORDS, stored_records
    from rope_exp.slurm.campaign import submit_campaign
    from rope_exp.slurm.cluster import FOLDER as CLUSTER
    from rope_exp.slurm.queue import Queue

    parser = Parser("campaign", "Run the cells of a campaign that have no record yet.")
    names = ", ".join(campaign_files())
    parser.add_argument(
        "name", metavar="NAME", help=f"of configs/campaign/NAME.yaml; there is {names}"
    )
    parser.add_argument(
        "words",
        nargs="*",
        # Otherwise argparse would name it as missing, too.
        default=[],
        metavar="launch=slurm",
        help="submit its cells as jobs, with keys of hydra.launcher, launch.cells_per_job and "
        "launch.runs_per_gpu, and do not wait for them",
    )
    parser.add_argument(
        "--hours",
        type=float,
        help="begin to stop after so many; each run saves a checkpoint, a minute or so more",
    )
    parser.add_argument(
        "--on-gpus",
        type=int,
        metavar="N",
        help="run its cells on this machine's GPUs, N at a time on each, whatever its file says",
    )
    parser.add_argument("--list", action="store_true", help="print its cells, and run none")
    parser.add_argument(
        "--pack",
        action="store_true",
        help="put its records into one file, RECORDS/NAME.jsonl.gz, and run none",
    )
    parser.add_argument(
        "--records", type=Path, default=DEFAULT_RECORDS, help="where records lie (%(default)s)"
    )
    parser.add_argument("--config-dir", **CONFIG_DIR)
    asked = parser.parse_intermixed_args(words)
    if asked.hours is not None and not 0 < asked.hours < 1e6:
        raise ConfigError("--hours", asked.hours, "must be a number above 0 and below 1,000,000")
    if asked.on_gpus is not None and asked.on_gpus < 1:
        raise ConfigError("--on-gpus", asked.on_gpus, "must be a whole number from 1")

    if is_rank():
        raise ConfigError(
            "campaign", asked.name, "starts its own ranks; start it without a launcher"
        )
    if asked.pack:
        if not stored_records(asked.records, asked.name):
            raise ConfigError("--pack", ..., f"{asked.records} holds no records of {asked.name}")
        print(pack(asked.records, asked.name))
        return 0
    found = load_campaign(asked.name, asked.config_dir, DEFAULT_OUTPUT)
    if asked.on_gpus is not None:
        found = found.with_launch(device="cuda", max_parallel="auto", runs_per_gpu=asked.on_gpus)
    progress = Progress(found, asked.records)
    queue = Queue(CLUSTER / asked.name)
    if asked.list and asked.words:
        raise ConfigError("--list", ..., f"takes no more words, such as {asked.words[0]}")
    if asked.list:
        progress.submitted = queue.describe([cell.name for cell in progress.left])
        print("\n".join(progress.lines()))
        return 0
    if asked.words:
        here = {"--hours": asked.hours, "--on-gpus": asked.on_gpus}
        for option, value in here.items():
            if value is not None:
                raise ConfigError(option, value, "is for a campaign that runs here")
        print(submit_campaign(progress, asked.words, asked.config_dir, queue))
        return 0

    # Until the runs start, a signal unwinds the preparation of data.
    on_signal(interrupt)
    deadline = math.inf if asked.hours is None else started + 3600 * asked.hours
    return run_campaign(progress, deadline)
