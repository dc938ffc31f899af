"""`rope-exp campaign`: run what is left of a campaign of many runs."""

import signal
import time
from pathlib import Path

from rope_exp.commands._parser import CONFIG_DIR, DEFAULT_RECORDS, Parser
from rope_exp.commands._rank import is_rank
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.errors import ConfigError
from rope_exp.identity import Count, convert
from rope_exp.signals import interrupt, on_signal


def main(words: list[str]) -> int:
    """Run the cells of a campaign that have no record yet, and write a record of each that ends."""
    started = time.monotonic()
    from rope_exp.campaign.campaign import Progress, pack, run_campaign
    from rope_exp.campaign.cells import campaign_files, load_campaign
    from rope_exp.slurm.campaign import submit_campaign
    from rope_exp.slurm.cluster import FOLDER, Queue

    parser = Parser("campaign", "Run the cells of a campaign that have no record yet.")
    add = parser.add_argument
    add("name", metavar="NAME", help=f"one of {', '.join(campaign_files())}")
    about = "submit its cells as jobs, with keys of hydra.launcher, launch.cells_per_job and "
    about += "launch.runs_per_gpu, and do not wait for them"
    # Without a default argparse would name it as missing, too.
    add("words", nargs="*", default=[], metavar="launch=slurm", help=about)
    about = "begin to stop after so many; each run saves a checkpoint, a minute or so more"
    add("--hours", type=float, help=about)
    about = "run its cells on this machine's GPUs, N at a time on each, whatever its file says"
    add("--on-gpus", type=int, metavar="N", help=about)
    add("--list", action="store_true", help="print its cells, and run none")
    about = "put its records into one file, RECORDS/NAME.jsonl.gz, and run none"
    add("--pack", action="store_true", help=about)
    add("--records", type=Path, default=DEFAULT_RECORDS, help="(%(default)s)")
    add("--config-dir", **CONFIG_DIR)
    asked = parser.parse_intermixed_args(words)
    if is_rank():
        reason = "starts its own ranks; start it without a launcher"
        raise ConfigError("campaign", asked.name, reason)
    if asked.pack:
        print(pack(asked.records, asked.name))
        return 0

    campaign = load_campaign(asked.name, asked.config_dir, DEFAULT_OUTPUT)
    if asked.on_gpus is not None:
        places = convert(Count, asked.on_gpus, "--on-gpus")
        campaign = campaign.with_launch(device="cuda", max_parallel="auto", runs_per_gpu=places)
    progress = Progress(campaign, asked.records)
    queue = Queue(FOLDER / asked.name)
    if asked.list:
        submitted = queue.describe([cell.name for cell in progress.left])
        print("\n".join(progress.lines(submitted)))
        return 0
    if asked.words:
        for option in ("hours", "on_gpus"):
            value = getattr(asked, option)
            if value is not None:
                raise ConfigError(f"--{option}", value, "is for a campaign that runs here")
        print(submit_campaign(progress, asked.words, asked.config_dir, queue))
        return 0

    if asked.hours is not None and not 0 < asked.hours < 1e6:
        raise ConfigError("--hours", asked.hours, "must be above 0 and below 1,000,000")
    # Until the runs start, a signal unwinds the preparation of data.
    on_signal(interrupt)
    if asked.hours is not None:
        left = 3600 * asked.hours - (time.monotonic() - started)
        # A signal of its own, so that a scheduler's or a person's is no repetition of it.
        signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3))
    return run_campaign(progress)
