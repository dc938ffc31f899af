"""Tests of steps captured as CUDA graphs, against the same steps launched kernel by kernel.

They are skipped without a GPU. ROPE_EXP_DEVICE=cpu makes the steps without a capture, to test the
tests.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.configs import NINE
from support.trainers import build_trainer, outcomes, snapshot, uncaptured

from rope_exp import checkpoint
from rope_exp.config import RunConfig
from rope_exp.decoder import weights
from rope_exp.optimizer import optimizer_tensors
from rope_exp.trainer import Trainer

DEVICE = os.environ.get("ROPE_EXP_DEVICE", "cuda" if torch.cuda.is_available() else "")
pytestmark = [
    pytest.mark.skipif(not DEVICE, reason="there is no GPU"),
    # A warning of torch's about its own features must not cost a measurement on a rare machine.
    pytest.mark.filterwarnings("ignore"),
]

RUNS: list[tuple[str, ...]] = [
    *((f"pe={pe}",) for pe in (*NINE, "alibi", "t5", "sinusoidal", "learned", "fox", "fox_vo")),
    *((f"attn={attn}",) for attn in ("linear", "retention", "mla", "shared_s1", "shared_s3")),
    *((f"attn={attn}", "pe=qkvo_rope") for attn in ("mla_vo", "shared_s2", "deepseek_v4")),
    ("attn=decay", "pe=vo_rope"),
    ("pe=qkvo_rope", "pe.trainable=true", "pe.trainable_scope=head"),
    ("pe=qkvo_rope", "optim=muon"),
    ("train.objective=mlm",),
    ("data.random_start=9",),
    ("data.reset_positions=true", "data.document_mask=true"),
    ("model.tie_word_embeddings=true", "train.micro_batch_size=1"),
    ("train.stages=[[8,2],[16,4]]",),
    ("pe=qkvo_rope", "train.compile=true"),
]

Build = Callable[..., Trainer]


@pytest.fixture
def build(tiny: Callable[..., RunConfig], tmp_path: Path) -> Build:
    """Return `build`: `build("name", "pe=vo_rope")` is a trainer on the device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    # The graphs of other tests must not be freed during a capture.
    gc.collect()

    def make(name: str, *words: str, captured: bool = True) -> Trainer:
        config = tiny(f"launch.device={DEVICE}", "train.micro_batch_size=2", *words)
        if config.train.compile == "auto":
            config = config.replace("train", compile=False)
        trainer = build_trainer(config, tmp_path / name)
        if DEVICE == "cpu" and captured:
            uncaptured(trainer)
        if not captured:
            trainer.train_step.graphs = None
        return trainer

    return make


def num_graphs(trainer: Trainer) -> int:
    graphs = trainer.train_step.graphs
    return 0 if graphs is None else len(graphs._graphs)


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_graph_computes_what_its_kernels_do(build: Build, words: tuple[str, ...]) -> None:
    graph = build("graph", *words)
    by_kernels = outcomes(build("kernels", *words, captured=False))
    torch.testing.assert_close(outcomes(graph), by_kernels, rtol=1e-3, atol=1e-9)
    assert num_graphs(graph) == len(graph.config.train.staged)


def test_evaluations_and_loads_between_replays(build: Build) -> None:
    """An evaluation changes no later step, and a graph goes on from a loaded checkpoint."""
    whole, broken = build("whole", "pe=qkvo_rope"), build("broken", "pe=qkvo_rope")
    losses = outcomes(whole)
    outcomes(broken, last=4)
    assert broken.evaluate() is not None
    moments = optimizer_tensors(broken.train_step.optimizer, broken.decoder)
    state = {**broken.start, **broken.identity, "step": 4, "order_sha256": "0" * 64}
    checkpoint.save(broken.folder / "checkpoints", 4, weights(broken.decoder), moments, state)
    outcomes(broken, first=5)
    assert broken.load()["step"] == 4
    torch.testing.assert_close(outcomes(broken, first=5), losses[4:], rtol=1e-5, atol=1e-9)


def test_a_bad_step_is_skipped_in_a_graph(build: Build) -> None:
    trainer = build("run")
    outcomes(trainer, last=2)
    weight = trainer.decoder.lm_head.weight
    with torch.no_grad():
        weight[0, 0] = torch.nan
    before = snapshot(trainer)
    bad, later = trainer.train_step(3), trainer.train_step(4)
    assert bad is not None
    assert later is not None
    assert [outcome.first_bad_step for outcome in (bad(), later())] == [3, 3]
    for name, tensor in snapshot(trainer).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(DEVICE == "cpu", reason="a CPU waits for nothing")
def test_a_step_that_reads_a_tensor_is_launched_by_kernels(
    build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels, reading = build("kernels", captured=False), build("reading")
    hook = reading.decoder.register_forward_hook(lambda module, given, nats: float(nats) and None)
    ours = outcomes(reading)
    hook.remove()
    assert num_graphs(reading) == 0
    assert "steps are launched kernel by kernel" in capsys.readouterr().err
    torch.testing.assert_close(ours, outcomes(kernels), rtol=1e-4, atol=1e-9)


@pytest.mark.skipif(DEVICE == "cpu", reason="a CPU waits for everything")
def test_the_host_never_waits_in_a_step(build: Build) -> None:
    trainer = build("run", "pe=qkvo_rope")
    outcomes(trainer, last=2)
    assert num_graphs(trainer) == 1
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.train_step(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
