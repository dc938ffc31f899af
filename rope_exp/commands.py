"""The commands other than `train`: each parses its arguments, calls its package, and prints."""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, NoReturn

from rope_exp.config.run import DEFAULT_OUTPUT, RunConfig
from rope_exp.system.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    ConfigError,
    RecordError,
)
from rope_exp.system.signals import interrupt, on_signal

CONFIG_DIR: dict[str, Any] = {"type": Path, "help": "a further folder of groups and their choices"}
# The counts that `prepare` prints for each side: key in the corpus's record, and label.
COUNTED = {"documents": "documents", "text_bytes": "bytes of text", "tokens": "tokens"}


class Parser(argparse.ArgumentParser):
    """The argument parser of one command, with one-sentence errors."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"rope-exp {command}", description=description)

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError for a bad command line."""
        raise ConfigError("usage", ..., f"{message}; see `{self.prog} --help`")


def report(words: list[str]) -> int:
    """Compile run folders into the table and its figures.

    Nothing is written unless all runs may share one table. The same runs give the same bytes.
    """
    from rope_exp.evidence.published import REFERENCE
    from rope_exp.evidence.records import DEFAULT_RECORDS

    parser = Parser("report", "Compile run folders into the table and its figures.")
    parser.add_argument("--runs", type=Path, help=f"where groups of runs lie ({DEFAULT_OUTPUT})")
    parser.add_argument("--group", help="which of them; may be left out where there is one")
    parser.add_argument(
        "--out",
        type=Path,
        help=f"where to write ({DEFAULT_OUTPUT.parent}); a campaign gets a folder of its name",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace another group's table, if there is no --out"
    )
    parser.add_argument("--reference", help=f"the row that differences are against ({REFERENCE})")
    parser.add_argument(
        "--factors",
        nargs="+",
        metavar="KEY",
        help="what tells rows apart: pe (the default), optim.lr, model, ...; --group may hold *",
    )
    parser.add_argument(
        "--campaign",
        metavar="NAME",
        help="the records of one campaign, or of `all`, instead of runs",
    )
    parser.add_argument(
        "--records", type=Path, default=DEFAULT_RECORDS, help="where records lie (%(default)s)"
    )
    asked = parser.parse_args(words)
    out = asked.out or DEFAULT_OUTPUT.parent
    for place in (out, *out.parents):
        if place.exists() and not place.is_dir():
            raise ConfigError("--out", str(out), f"{place} is a file; name a folder")

    if asked.campaign is not None:
        for flag in ("runs", "group", "reference", "factors"):
            if getattr(asked, flag) is not None:
                allowed = "is for the tables of runs, and --campaign takes records; leave one out"
                raise ConfigError(f"--{flag}", ..., allowed)

    # Imported late, because figures take a second to import.
    from rope_exp.report.command import write, write_campaigns

    if asked.campaign is not None:
        name = None if asked.campaign == "all" else asked.campaign
        print("\n".join(write_campaigns(asked.records, name, out)))
        return 0

    runs = asked.runs or DEFAULT_OUTPUT
    factors = tuple(asked.factors or ["pe"])
    is_meant = asked.force or asked.out is not None
    lines = write(runs, asked.group, out, asked.reference, factors, replace=is_meant)
    print("\n".join(lines))
    return 0


def campaign(words: list[str]) -> int:
    """Run the cells of a campaign that have no record yet, and write a record of each that ends.

    Campaigns are defined in configs/campaign/*.yaml. Commit the records: a cell with a record is
    done on every machine.
    """
    started = time.monotonic()
    from rope_exp.evidence.records import DEFAULT_RECORDS, pack, stored_records
    from rope_exp.launch.as_rank import is_rank
    from rope_exp.launch.campaign import run_campaign, submit_campaign
    from rope_exp.launch.cluster import FOLDER as CLUSTER
    from rope_exp.launch.progress import Progress
    from rope_exp.launch.queue import Queue
    from rope_exp.plan.campaign import load_campaign
    from rope_exp.plan.campaign_file import campaign_files

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
    deadline = None if asked.hours is None else started + 3600 * asked.hours
    return run_campaign(progress, deadline)


def sweep(words: list[str]) -> int:
    """Submit the runs of a sweep to a cluster that have no result, and do not wait for them."""
    from rope_exp.launch.cluster import list_sweep, submit_sweep
    from rope_exp.plan.compose import compose_jobs

    parser = Parser("sweep", "Submit the runs of a sweep to a cluster, and do not wait for them.")
    parser.add_argument(
        "overrides", nargs="+", metavar="key=value", help="as `rope-exp train -m` takes them"
    )
    parser.add_argument("--list", action="store_true", help="print its runs, and submit none")
    parser.add_argument("--config-dir", **CONFIG_DIR)
    asked = parser.parse_intermixed_args(words)
    jobs = compose_jobs(asked.overrides, asked.config_dir, multirun=True)
    print(list_sweep(jobs) if asked.list else submit_sweep(jobs, asked.overrides))
    return 0


def plan(words: list[str]) -> int:
    """Print the cost of a config, or a sweep of them, before it runs."""
    from rope_exp.data.prepare import num_prepared_tokens
    from rope_exp.plan.plan import cost_lines, sweep_lines
    from rope_exp.plan.resolve import resolve
    from rope_exp.run.folder import read_result
    from rope_exp.training.beginning import with_origin

    parser = Parser("plan", "Print what a config, or a sweep of them, costs before it runs.")
    configs = [resolve(with_origin(config)) for config in _configs(parser, words, sweeps=True)]
    config = configs[0]
    folders = (DEFAULT_OUTPUT / config.group).glob("*/seed*")
    rates = [result["tokens_per_s"] for result in map(read_result, folders) if result]
    measured = statistics.median(filter(None, rates)) if any(rates) else None
    # Generated data is endless.
    epoch = None if config.data.task else num_prepared_tokens(config.data, config.tokenizer)
    print("\n".join(cost_lines(config, measured, epoch)))
    if len(configs) > 1:
        alike = len({each.group for each in configs}) == 1
        print("\n".join(sweep_lines(configs, measured if alike else None)))
    return 0


def prepare(words: list[str]) -> int:
    """Prepare a corpus ahead of training, verify every block, and print a summary."""
    from rope_exp.data.generated import Generated, open_data

    about = "Prepare a corpus ahead of training; only data, tokenizer and train.seq_len matter."
    # A sweep's first run stands for all.
    config = _configs(Parser("prepare", about), words)[0]
    found = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    if isinstance(found, Generated):
        print(f"data={config.data.name} is generated as it is read: there is nothing to prepare")
    else:
        print(
            f"{found.folder}: data={config.data.name}, tokenizer={config.tokenizer.name}, verified"
        )
        for side in ("train", "validation"):
            counts = [f"{found.corpus[what][side]:,} {said}" for what, said in COUNTED.items()]
            label = f"{side}:"
            print(f"  {label:11} {', '.join(counts)}")
    print(f"  vocabulary: {found.vocab_size:,}")
    print(f"  sha256:     {found.data_sha256}")
    return 0


def _configs(parser: Parser, words: list[str], *, sweeps: bool = False) -> list[RunConfig]:
    """Return the configs of a command that takes the overrides of `train`."""
    from rope_exp.plan.compose import compose_jobs

    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as `rope-exp train` takes them"
    )
    parser.add_argument("--config-dir", **CONFIG_DIR)
    if sweeps:
        parser.add_argument(
            "-m", "--multirun", action="store_true", help="several values of a key make a sweep"
        )
    asked = parser.parse_intermixed_args(words)
    multirun = sweeps and asked.multirun
    return compose_jobs(asked.overrides, asked.config_dir, multirun=multirun).configs


def _check_is_run(folder: Path) -> None:
    """Refuse a folder that holds no run, before anything in it is read."""
    from rope_exp.run.folder import CONFIG

    if not (folder / CONFIG).exists():
        raise ConfigError("RUN_FOLDER", str(folder), "there is no run in this folder")


def generate(words: list[str]) -> int:
    """Print a completion of each text by a run's model."""
    parser = Parser("generate", "Print what a run's model says after each text.")
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path)
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="each begins a document")
    parser.add_argument("--tokens", type=int, default=64, help="how many at most (%(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0: the likeliest always (%(default)s)"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        help="draw from the likeliest that together have this probability (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (%(default)s)")
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest otherwise")
    asked = parser.parse_args(words)

    for flag, value, holds, allowed in (
        ("--tokens", asked.tokens, asked.tokens >= 1, "must be at least 1"),
        ("--temperature", asked.temperature, asked.temperature >= 0, "must be 0 or above"),
        ("--top-p", asked.top_p, 0 < asked.top_p <= 1, "must be above 0 and at most 1"),
        ("--seed", asked.seed, 0 <= asked.seed < 2**63, "must be from 0, and below 2^63"),
    ):
        if not holds:
            raise ConfigError(flag, value, allowed)

    _check_is_run(asked.folder)

    # Imported late, because torch takes a second to import.
    from rope_exp.evaluation.generate import Sampling, complete

    sampling = Sampling(asked.tokens, asked.temperature, asked.top_p, asked.seed)
    completions = complete(asked.folder, asked.texts, sampling, asked.step)
    for text, completion in zip(asked.texts, completions, strict=True):
        print(f"{text}{completion}", end="\n\n")
    return 0


def export(words: list[str]) -> int:
    """Write a run's model and tokenizer as a folder that transformers loads."""
    parser = Parser("export", "Write a run's model as a folder that transformers loads.")
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path)
    parser.add_argument("out", metavar="OUT", type=Path, help="a new folder")
    parser.add_argument(
        "--code",
        choices=("auto", "always"),
        default="auto",
        help="auto: transformers' own class if it has one for this model; always: our code",
    )
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest otherwise")
    asked = parser.parse_args(words)
    _check_is_run(asked.folder)

    # Imported late, because transformers takes seconds to import.
    from rope_exp.export.card import loading
    from rope_exp.export.write import export as write

    name = write(asked.folder, asked.out, asked.code, asked.step)
    print(f"{asked.out}: {name}; in Python: {loading(name, str(asked.out))}")
    return 0


def check_records(words: list[str]) -> int:
    """Check records, such as somebody else's: one sentence for each campaign and each fault."""
    from rope_exp.evidence.records import read_record, recorded_campaigns, stored_records
    from rope_exp.report.command import tables_of

    parser = Parser("check-records", "Check records, such as somebody else's.")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="of campaigns' records")
    folder = parser.parse_args(words).folder
    names = recorded_campaigns(folder)
    if not names:
        raise ConfigError(
            "FOLDER", str(folder), "holds no CAMPAIGN/CELL.json and no CAMPAIGN.jsonl.gz"
        )

    code = EXIT_DONE
    for name in names:
        runs = []
        faults = []
        try:
            stored = stored_records(folder, name)
        except RecordError as error:
            stored = {}
            faults.append(str(error))
        for path, content in stored.items():
            try:
                runs.append(read_record(path, content))
            except RecordError as error:
                faults.append(str(error))
        said = f"{name}: {len(runs)} of {len(stored)} records are whole"
        if runs:
            try:
                tables_of(runs)
                said += ", and may be compared"
            except RecordError as error:
                said += f", and may not be compared: {error}"
                code = EXIT_FAILED
        if faults:
            code = EXIT_FAILED
        print(said)
        print("".join(f"  {fault}\n" for fault in faults), end="")
    return code
