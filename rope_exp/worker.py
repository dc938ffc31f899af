"""Initial weights of a run: drawn from its seed, or those of a finished run (run.init_from).

Runs are told apart by their initial weights, not by a path: `init_weights` is the SHA-256 of the
weights file in the other run's last checkpoint. A parameter that the other run lacks keeps its
usual initialisation. One that this run lacks is an error, unless it encodes positions alone.
"""

import ctypes
import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from rope_exp import folder as files
from rope_exp.config import RunConfig
from rope_exp.decoder import FREQUENCIES, OWN, POSITIONS, Decoder, llama_weights, weights
from rope_exp.decoder import weights_sha256 as sha256
from rope_exp.errors import (
    EXIT_CODES,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_USAGE,
    MISTAKES,
    ConfigError,
    RecordError,
    explained_by,
    first_line,
    ignoring_output_errors,
    keep,
    keep_log,
    log,
    sentence,
)
from rope_exp.files import read_json, write_atomically, write_json
from rope_exp.folder import ENV, LOG, RESULT, describe, read_config, read_env
from rope_exp.identity import choices, chosen
from rope_exp.load import load_run
from rope_exp.machine import DISPATCHER_ID
from rope_exp.sections import Kind, ModelConfig, PeConfig
from rope_exp.signals import StopSignal, end_with_parent


class Origin(NamedTuple):
    """A finished run, its last step, and the SHA-256 of the weights in that checkpoint."""

    folder: Path
    config: RunConfig
    step: int
    weights_sha256: str


def with_origin(config: RunConfig) -> RunConfig:
    """Return a config with the hash of the weights of run.init_from, if it names a run.

    Raises ConfigError or RecordError if that is no finished run, or its weights mean something else
    in this model.
    """
    if config.run.init_from is None:
        return config
    try:
        origin = find_origin(config)
    except (ConfigError, RecordError):
        # A run with checkpoints of its own resumes from these, and its origin may be gone.
        is_begun = not config.run.fresh and files.list_steps(config.folder / "checkpoints")
        before = files.read_config(config.folder) if is_begun else None
        if before is None or before.run.init_from != config.run.init_from:
            raise
        return replace(config, init_weights=before.init_weights)

    # These determine the meaning of weights, and do not show in their shapes.
    heads = ["num_attention_heads", "num_key_value_heads", "tie_word_embeddings"]
    both_learn = set(config.pe.trained_pairs) & set(origin.config.pe.trained_pairs)
    for key in [f"model.{key}" for key in heads] + ["pe.trainable"] * bool(both_learn):
        own, other = map(attrgetter(key), (config, origin.config))
        if own != other:
            raise ConfigError(key, own, f"must be {other}, as in run.init_from={origin.folder}")
    return replace(config, init_weights=origin.weights_sha256)


def find_origin(config: RunConfig) -> Origin:
    """Find the finished run that run.init_from names; its weights must be init_weights if set."""
    folder = Path(str(config.run.init_from)).expanduser()
    if not (folder / files.CONFIG).exists():
        raise _unfit(config, "there is no run in this folder")
    result = files.read_result(folder)
    if result is None or result["status"] != "finished":
        raise _unfit(config, "this run is not finished")
    checkpoint = files.step_folder(folder / "checkpoints", result["steps"])
    if not checkpoint.exists():
        raise _unfit(config, f"the checkpoint of its last step, {result['steps']}, is gone")
    found = files.read_as(checkpoint / files.MANIFEST, files.Manifest)[files.MODEL]["sha256"]
    if config.init_weights not in (None, found):
        raise _unfit(config, f"has other weights than init_weights={config.init_weights:.12}")
    return Origin(folder, files.read_config(folder), result["steps"], found)


@torch.no_grad()
def begin(
    decoder: Decoder, config: RunConfig, folder: Path, tokenizer_json: str, *, is_main: bool
) -> dict[str, str]:
    """Set the initial weights of a decoder that was drawn from its seed; return their hashes.

    {} if the run resumes from its own checkpoints. Raises ConfigError if run.init_from is unfit.
    """
    own = weights(decoder)
    if config.init_weights is not None:
        if files.list_steps(folder / "checkpoints"):
            return {}
        origin = find_origin(config)
        theirs, tokenizer = load_run(origin.folder, origin.step)
        if tokenizer.to_str() != Tokenizer.from_str(tokenizer_json).to_str():
            raise _unfit(config, "has another tokenizer: its tokens mean others")
        # Learned frequencies are of a pair of sites; the first pair that learns has the first name.
        here = _learned(config)
        names = {n: here.get(p, f"{n} of {p}") for p, n in _learned(origin.config).items()}
        found = {names.get(name, name): each for name, each in weights(theirs).items()}
        for name, tensor in sorted(found.items()):
            is_position = name.startswith(POSITIONS) or OWN in name
            if own[name].shape != tensor.shape if name in own else not is_position:
                raise _unfit(config, f"has {name} of {list(tensor.shape)}, which does not fit here")
        for name in found.keys() & own.keys():
            own[name].copy_(found[name])
        if is_main:
            apart = {"left out": found.keys() - own.keys(), "begun anew": own.keys() - found.keys()}
            said = "".join(f"; {k}: {', '.join(sorted(v))}" for k, v in apart.items() if v)
            log(f"{config.name}: begins with step {origin.step} of {origin.folder}{said}")
    return {"init_sha256": sha256(own), "shared_init_sha256": sha256(llama_weights(decoder))}


def _learned(config: RunConfig) -> dict[str, str]:
    """Return the names of learned frequencies by their pair of sites."""
    names = [FREQUENCIES + name for name in config.pe.learned_names]
    return dict(zip(config.pe.trained_pairs, names, strict=True))


def _unfit(config: RunConfig, reason: str) -> ConfigError:
    return ConfigError("run.init_from", config.run.init_from, reason)


FAILURES = (EXIT_FAILED, EXIT_USAGE)

# torch's own limit on the compilations of one function, past which it runs eagerly.
GRAPHS_OF_A_LENGTH = 8

# Constants of glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def main() -> int:
    """Train the run in the folder named on the command line; return the exit code."""
    # Before anything slow, so that a signal during imports is caught.
    stop = StopSignal()
    end_with_parent(int(os.environ[DISPATCHER_ID]))

    folder = Path(sys.argv[1])
    code = EXIT_FAILED
    try:
        code = explain_errors(lambda: run(read_config(folder), folder, stop))
    except Exception:
        keep(traceback.format_exc())
        if _world_size() == 1:
            raise
        traceback.print_exc()
    return end_process(code)


def end_process(code: int) -> int:
    """Return `code`; but if one of several ranks fails, exit its process at once.

    Python's normal shutdown would be aborted by torch threads that wait for ranks that are gone.
    """
    if code in FAILURES and _world_size() > 1:
        with ignoring_output_errors():
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def explain_errors(action: Callable[[], int]) -> int:
    """Return the exit code of `action`, and log in one sentence any error that is not a bug.

    A user's mistake gives exit code 2; a broken network, full disk or full memory gives 1.
    """
    try:
        return action()
    except MISTAKES as error:
        log(f"error: {error}")
        return EXIT_USAGE
    except (OSError, MemoryError, RuntimeError) as error:
        # If one rank fails, the others lose their connection to it.
        if _world_size() > 1 and ("gloo" in str(error) or type(error).__name__.startswith("Dist")):
            log(f"error: lost the other processes of this run ({first_line(error)})")
        else:
            log(f"error: {sentence(error)}")
    return EXIT_FAILED


def run(config: RunConfig, folder: Path, stop: StopSignal) -> int:
    """Train one run in this process, as the rank given by the environment.

    The caller holds the run's lock.

    Returns:
        The exit code.
    """
    # Several ranks stop together, in the loop.
    if stop.requested and _world_size() == 1:
        return EXIT_STOPPED

    if os.environ.get("RANK", "0") == "0":
        keep_log(folder / LOG)

    # Imported objects stay alive. Letting Python's collector search them for garbage costs a
    # second at the start, and a step or two in training.
    gc.disable()
    set_up_process(config)

    from rope_exp.generated import open_data
    from rope_exp.parallel import Parallel
    from rope_exp.trainer import Trainer, environment

    gc.freeze()
    gc.enable()

    train = config.train
    launch = config.launch
    checked = certificate(config.model, config.pe, config.attn, causal=config.causal)
    data = open_data(config.data, config.tokenizer, seq_len=train.seq_len)
    parallel = Parallel(launch.device, train.precision, launch.num_processes)
    is_main = parallel.is_main
    trainer = Trainer(config, folder, data, parallel, stop)

    if is_main:
        facts = {
            "params": trainer.num_parameters,
            "certificate": checked,
            "corpus": data.corpus,
        }
        if launch.device == "cuda":
            facts["attention"] = trainer.attention_backends()
        old = read_env(folder)
        env = environment(config, parallel, old, **facts)
        write_json(folder / ENV, env)
        write_atomically(folder / "tokenizer.json", data.tokenizer_json)
        if trainer.step:
            log(f"{config.name}: resumes from step {trainer.step}")
        for mark in env["marks"][len(old.get("marks", ())) :]:
            log(f"{config.name}: {mark}")
        log(f"{config.name}: {describe_run(config, trainer.num_parameters)}, in {folder}")
        log(f"{config.name}: {describe_start(config, data.num_train_tokens)}")
        if launch.device == "cuda" and trainer.throughput.peak_flops_per_s is None:
            log(
                f"{config.name}: MFU is null: the dense bf16 peak of this GPU is neither listed "
                "nor given as train.peak_tflops"
            )
        if launch.device == "cuda" and trainer.train_step.graphs is None:
            is_one = parallel.world_size == 1
            why = "ROPE_EXP_GRAPHS=0" if is_one else "several processes average their gradients"
            log(f"{config.name}: steps are launched kernel by kernel, not as a graph: {why}")

    gc.collect()
    gc.freeze()
    with explained_by(config.pe.code, every=False):
        status = trainer.train()

    del trainer
    parallel.end()
    if is_main:
        log(f"{config.name}: {_describe_end(status, folder)}")
    return EXIT_CODES[status]


@functools.cache
def certificate(model: ModelConfig, pe: PeConfig, attn: Kind, *, causal: bool) -> Mapping[str, Any]:
    """Measure the laws of a variant, once for all seeds of a sweep.

    Raises:
        LawError: a law does not hold; the run must not start.
    """
    found: dict[str, Any] = {}
    for name in choices("laws"):
        found |= chosen("laws", name, "laws").certificate(model, pe, attn, causal=causal)
    return found


def set_up_process(config: RunConfig) -> None:
    """Set determinism, compilation and memory options for the whole process."""
    import torch

    # Each sequence length has its own graphs.
    torch._dynamo.config.recompile_limit = GRAPHS_OF_A_LENGTH * len(config.train.staged)

    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Filling costs time and changes no number: nothing reads memory before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    # One compiled block serves every layer; DDP's splitting of graphs by bucket would undo that.
    torch._dynamo.config.optimize_ddp = False

    if config.launch.num_threads != "auto":
        torch.set_num_threads(config.launch.num_threads)
    if config.launch.device == "cpu":
        keep_memory()


def keep_memory() -> None:
    """Make glibc, if that is the C library, keep memory that a step frees for the next step.

    Otherwise it returns every tensor above a threshold of at most 32 MiB to the kernel, which
    zeroes each page again at its next use: a sixth of a step (docs/decisions/010-kernels.md).
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return

    # Versions before 2.35 accept no threshold above 32 MiB. Setting the trim threshold alone would
    # fix this one at 128 KiB.
    if any(library.mallopt(M_MMAP_THRESHOLD, most) for most in (2**31 - 1, 2**25)):
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def describe_run(config: RunConfig, num_parameters: int) -> str:
    """Return the model, data and size of a run, for the first line of its log."""
    return (
        f"{config.pe.label} {config.model.name}, {num_parameters:,} parameters, on "
        f"{config.data.name}, {config.train.num_steps:,} steps, on {config.launch.device}"
    )


def describe_start(config: RunConfig, num_tokens: int | None) -> str:
    """Return the epochs, precision and compilation of a run, for its log.

    Args:
        num_tokens: tokens in the corpus's training side; None: the data is generated.
    """
    train = config.train
    what = "generated data"
    if num_tokens is not None:
        what = f"{train.num_tokens / num_tokens:.3g} epochs"
    how = "compiled" if train.compile else "not compiled"
    return f"{what} in {train.precision}, {how}"


def _describe_end(status: str, folder: Path) -> str:
    """Return a readable summary of the run's end."""
    if status == "stopped":
        return f"stopped; its last checkpoint is in {folder}, and the same command resumes it"
    return f"{describe(read_json(folder / RESULT))}, in {folder}"


def _world_size() -> int:
    """Return the number of ranks that the launcher reports."""
    return int(os.environ.get("WORLD_SIZE", "1"))


if __name__ == "__main__":
    sys.exit(main())
