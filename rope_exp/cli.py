"""The command line: `rope-exp COMMAND ...`, or `python -m rope_exp COMMAND ...`.

Exit codes: 0 done, 1 failed, 2 bad config or usage, 3 diverged, 75 stopped with a checkpoint.
"""

# Import nothing slow here: signals reach `leave` only after these imports.
import logging
import os
import sys

from rope_exp.errors import ConfigError, RecordError, explained
from rope_exp.signals import starting_runs

HELP = """Where in attention should a rotation go?

  rope-exp train pe=vo_rope          train one run, or every run of a sweep
  rope-exp campaign NAME             run what is left of a campaign of many runs
  rope-exp sweep ... launch=slurm    submit the runs of a sweep to a cluster
  rope-exp report --group NAME       the table of the runs that are done
  rope-exp plan model=1b             what a config costs before it runs
  rope-exp prepare data=files ...    prepare a corpus ahead of training
  rope-exp generate RUN_FOLDER TEXT  text from a run's model
  rope-exp export RUN_FOLDER OUT     a run's model for transformers
  rope-exp check-records FOLDER      whether somebody's records are whole and comparable

`rope-exp COMMAND --help` says more. `python train.py` and `python scripts/report.py` are the same.
"""


def main(command: str | None = None) -> int:
    """Run a command, by default the first word of the command line; return its exit code."""
    # The next file to be opened, such as a lock, would get the number of a stream that is closed,
    # and ranks, which inherit it, would write to it.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r", closefd=False))

    words = sys.argv[1:]
    if command is None:
        command = words.pop(0) if words else "--help"
    if command in ("train", "campaign", "sweep"):
        return explained(lambda: starting_runs(lambda: _run(command, words)))
    return explained(lambda: _run(command, words))


def _run(command: str, words: list[str]) -> int:
    if command in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if command == "--version":
        from rope_exp import __version__

        print(__version__)
        return 0
    if command == "train":
        return train(words)

    from rope_exp.identity import chosen

    module = chosen("commands", command.replace("-", "_"), "command", core="train")
    return int(module.main(words))


def train(words: list[str]) -> int:
    """Let Hydra compose and run the jobs of a command line, or print the output of its flags."""
    from rope_exp.ranks import check_ranks

    check_ranks()
    _add_plugin()
    # Hydra's parser expects its flags first.
    sys.argv[1:] = sorted(words, key=lambda word: "=" in word and not word.startswith("-"))
    # Make Hydra raise errors instead of printing them.
    shows_all = os.environ.setdefault("HYDRA_FULL_ERROR", "0") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Hydra prints through logging, which would show a traceback per line to a closed pipe.
    logging.raiseExceptions = False

    import hydra
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from rope_exp.compose import CONFIGS, HYDRA_VERSION, explain
    from rope_exp.sweep import exit_codes, run_job

    mistakes = (HydraException, OmegaConfBaseException, yaml.YAMLError)
    try:
        hydra.main(str(CONFIGS), "config", HYDRA_VERSION)(run_job)()
    except SystemExit as end:
        return int(end.code or 0)
    except ChildProcessError:
        # The sweep has already reported the failed runs.
        if not exit_codes:
            raise
    except (ConfigError, RecordError):
        raise
    except (*mistakes, ValueError, RecursionError) as error:
        if shows_all:
            raise
        raise explain(error) from error
    except RuntimeError as error:
        if '"srun"' not in str(error):
            raise
        reason = "there is no SLURM here (no srun); launch=slurm_local rehearses it"
        raise ConfigError("launch", "slurm", reason) from None
    return max(exit_codes, default=0)


def _add_plugin() -> None:
    """Make our launcher Hydra's default; Hydra finds plugins only in the package hydra_plugins."""
    from rope_exp.machine import PACKAGE, child_environment

    # A checkout adds its folder to the paths of this process and of those that a launcher starts.
    folder = PACKAGE / "plugin"
    if folder.is_dir():
        sys.path.append(str(folder))
        paths = [child_environment().get("PYTHONPATH"), str(folder)]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    # Discovery stores the plugins' own configs, so it must precede ours.
    Plugins.instance()
    launcher = {"_target_": "hydra_plugins.rope_exp_launcher.RopeExpLauncher"}
    ConfigStore.instance().store("basic", launcher, group="hydra/launcher", provider="rope_exp")
