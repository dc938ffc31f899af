"""What a run says of itself: config.yaml, env.json, probes.json and result.json in its folder.

Every file appears whole by an atomic rename. result.json comes last: its presence means that the
run is done. What is read back is checked, type by type: a folder that was damaged or edited is
refused by the file's name; of probes.json its digest is checked. metrics.jsonl and checkpoints have
modules of their own. No torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import yaml
from pydantic import Field, FiniteFloat
from typing_extensions import TypedDict

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import (
    Count,
    Natural,
    NonNegative,
    OrderSha256,
    Seed,
    Sha256,
    convert,
)
from rope_exp.run.answers import Answers
from rope_exp.system.errors import ConfigError, RecordError
from rope_exp.system.files import json_sha256, read_json, read_text, readable, write_atomically

CONFIG = "config.yaml"
ENV = "env.json"
RESULT = "result.json"
PROBES = "probes.json"
LOCK = ".lock"
LOG = "log.txt"
# In the folder of a checkpoint.
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"

# The first key of config.yaml. Later versions of the program give new keys their defaults, and so
# read this format; only a change that defaults cannot bridge takes another.
FORMAT = 2

_Losses = TypedDict(
    "_Losses", {"val/loss": FiniteFloat | None, "train/loss_last": FiniteFloat | None}
)
_FinishedLoss = TypedDict("_FinishedLoss", {"val/loss": FiniteFloat})
_DivergedLoss = TypedDict("_DivergedLoss", {"val/loss": None, "diverged_step": Count})
_LOSS = {"finished": _FinishedLoss, "diverged": _DivergedLoss}


class Result(_Losses):
    """result.json. Losses are in the unit of the data (DataConfig.unit), times in seconds."""

    status: Literal["finished", "diverged"]
    pe: str
    rotate: tuple[str, ...]
    seed: Seed
    params: Count
    tokens: Natural
    steps: Natural
    init_sha256: Sha256
    # Of what was drawn for the parameters that every variant has; older runs had no others.
    shared_init_sha256: NotRequired[Sha256]
    data_sha256: Sha256
    order_sha256: OrderSha256
    config_sha256: Sha256
    group_sha256: Sha256
    # Of probes.json; of a run that was asked nothing there is none, nor of older ones.
    probes_sha256: NotRequired[Sha256]
    tokens_per_s: NonNegative | None
    mfu: NonNegative | None
    # Bounded, so that a campaign's sum is still a time.
    wall_s: Annotated[float, Field(ge=0, le=1e8)]


class _Answered(TypedDict):
    probes: Answers


class Env(TypedDict):
    """Of env.json, what is read back: what changed when the run went on, and when it started."""

    marks: tuple[str, ...]
    started: tuple[str, ...]
    device: NotRequired[str]
    cpu: NotRequired[str]
    torch: NotRequired[str]
    num_threads: NotRequired[Count]
    world_size: NotRequired[Count]


class File(TypedDict):
    """Of a file of a checkpoint, what its manifest says. Older ones have the size, too."""

    sha256: Sha256


Manifest = TypedDict(
    "Manifest", {"model.safetensors": File, "optimizer.safetensors": File, "state.json": File}
)


def write_config(folder: Path, config: RunConfig) -> None:
    """Write config.yaml: the whole config, with every default."""
    values = {"format": FORMAT, **config.to_dict()}
    write_atomically(folder / CONFIG, yaml.safe_dump(values, sort_keys=False))


def read_config(folder: Path) -> RunConfig:
    """Read config.yaml; a key that it leaves out, because it is newer, has its default.

    Raises:
        RecordError: it is missing, or is not a config as this version writes it.
    """
    path = folder / CONFIG
    text = read_text(path)
    with readable(path, yaml.YAMLError):
        values = yaml.safe_load(text)

    if isinstance(values, dict) and values.pop("format", 1) != FORMAT:
        raise RecordError(
            f"{path} is of another format than this version's: it was written before a run's "
            "identity covered departures from defaults; a new folder or run.fresh=true begins anew"
        )
    try:
        return RunConfig.from_dict(values)
    except ConfigError as error:
        raise RecordError(f"{path} is no config of this version: {error}") from error


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read result.json, a `Result`; None while the run is not done.

    Raises:
        RecordError: it is not what a run writes.
    """
    path = folder / RESULT
    if not path.exists():
        return None
    return check_result(path, read_json(path))


def read_env(folder: Path) -> dict[str, Any]:
    """Read env.json, an `Env` and more; {} before the run's first start.

    Raises:
        RecordError: it is not what a run writes.
    """
    path = folder / ENV
    return read_as(path, Env) if path.exists() else {}


def probes_sha256(folder: Path) -> str:
    """Return the SHA-256 of what probes.json says.

    Raises:
        RecordError: it cannot be read.
    """
    return json_sha256(read_json(folder / PROBES))


def read_probes(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Read probes.json; {} of a run whose result does not vouch for one.

    Raises:
        RecordError: it is not what the run wrote.
    """
    if "probes_sha256" not in result:
        return {}
    path = folder / PROBES
    answers = read_json(path)
    check_probes(path, answers, result)
    return answers


def check_probes(path: Path, answers: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Refuse answers of other types, or other than a result vouches for; older ones vouch for none.

    Raises:
        RecordError: what stands in `path` was changed since the run wrote it.
    """
    checked(path, {"probes": answers}, _Answered)
    # JSON may hold numbers past a float's range, which Python reads as infinity.
    with readable(path):
        found = json_sha256(answers)
    if found != result.get("probes_sha256", found):
        raise RecordError(f"{path} holds other probes than its result has the SHA-256 of")


def step_folder(checkpoints: Path, step: int) -> Path:
    """Return where the checkpoint of `step` stands below a run's `checkpoints/`."""
    return checkpoints / f"step_{step:08d}"


def list_steps(checkpoints: Path) -> list[int]:
    """Return the steps of the checkpoints of a run, oldest first, verified or not."""
    found = checkpoints.glob(f"step_{'[0-9]' * 8}")
    return sorted(int(path.name.removeprefix("step_")) for path in found)


def read_as(path: Path, hint: Any) -> dict[str, Any]:
    """Read a JSON object as a TypedDict.

    Raises:
        RecordError: naming the file, and the key in it that is at fault.
    """
    return checked(path, read_json(path), hint)


def checked(path: object, values: Mapping[str, Any], hint: Any) -> dict[str, Any]:
    """Return what stands in `path` as a TypedDict; further keys are left as they are.

    Raises:
        RecordError: naming the file, the key, its value and what is allowed.
    """
    try:
        found: dict[str, Any] = convert(hint, values)
    except ConfigError as error:
        raise RecordError(f"{path} was damaged or edited: {error}") from error
    return {**values, **found}


def check_result(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in `path` as a `Result`, whose losses are those of how the run ended.

    Raises:
        RecordError: see `checked`.
    """
    result = checked(path, values, Result)
    return checked(path, result, _LOSS[result["status"]])


def describe_done(folder: Path) -> str:
    """Return what is said instead of running a run that is done."""
    result = describe(read_json(folder / RESULT))
    return f"{folder} is done: {result}; run.fresh=true runs it anew"


def describe(result: Mapping[str, Any]) -> str:
    """Return a result in a few words."""
    if result["status"] == "diverged":
        return f"diverged: after {result['steps']} steps a loss or a gradient was not finite"
    rate = f", {result['tokens_per_s']:,.0f} tokens/s" if result["tokens_per_s"] else ""
    return f"finished, val/loss {result['val/loss']:.4f}{rate}, {result['wall_s']:.0f} s"
