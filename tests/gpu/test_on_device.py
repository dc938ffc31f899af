"""Tests of a GPU against a CPU: logits, gradients, the cache and a resumed run.

They are skipped without a GPU. ROPE_EXP_DEVICE=cpu compares a CPU with itself, to test the tests.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.kinds import KINDS, all_sites
from support.models import SUBSETS, make_sizes, opinionated, tokens
from support.runs import assert_same_run, train

from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder
from rope_exp.sections import AttentionConfig

DEVICE = os.environ.get("ROPE_EXP_DEVICE", "cuda" if torch.cuda.is_available() else "")
pytestmark = pytest.mark.skipif(not DEVICE, reason="there is no GPU")

# Tolerances of float32 without TF32, for logits of about 1.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
# Sizes at which the fused kernels need no padding.
SIZES = make_sizes(hidden_size=128, intermediate_size=256, num_key_value_heads=4)
# The kernel gets a bias as a mask, which has a gradient if the bias is learned. Some kinds have
# values that are narrower than their keys.
VARIANTS: list[tuple[Sequence[str], dict[str, Any]]] = [
    *((sites, {}) for sites in SUBSETS),
    *(("qk", {"bias": bias, "causal": causal}) for bias in ("alibi", "t5") for causal in (1, 0)),
    *(("qk", {"input": added}) for added in ("sinusoidal", "learned")),
]
OF_KINDS = [(all_sites(attn), attn) for attn in KINDS]


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def both(*rotate: str, **changes: Any) -> tuple[Decoder, Decoder]:
    """Return the same decoder on the CPU, in float64, and on the device, in float32."""
    exact = opinionated(*rotate, **changes)
    there = opinionated(*rotate, **changes)
    return exact.double(), there.to(DEVICE)


@pytest.mark.parametrize(
    ("sites", "changes"),
    [
        *((sites, {"sizes": SIZES, "num_positions": 64} | scheme) for sites, scheme in VARIANTS),
        *((sites, {"attn": attn}) for sites, attn in OF_KINDS),
    ],
    ids=str,
)
def test_every_variant_and_kind_computes_what_a_cpu_does(
    sites: Sequence[str], changes: dict[str, Any]
) -> None:
    """Logits, and the gradients of their mean square, agree."""
    exact, there = both(*sites, **changes)
    ids_BT = tokens(2, 48)
    exact_BTV = exact(ids_BT)
    there_BTV = there(ids_BT.to(DEVICE))
    torch.testing.assert_close(there_BTV.double().cpu(), exact_BTV, **CLOSE)

    exact_BTV.square().mean().backward()
    there_BTV.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in there.named_parameters()}
    for name, parameter in exact.named_parameters():
        assert parameter.grad is not None, name
        gradient = gradients[name]
        assert gradient is not None, name
        scale = parameter.grad.abs().max()
        assert (gradient.double().cpu() - parameter.grad).abs().max() <= 1e-3 * scale, name


@pytest.mark.parametrize(("sites", "attn"), OF_KINDS, ids=str)
def test_decoding_gives_what_the_whole_text_gives(sites: list[str], attn: AttentionConfig) -> None:
    _, decoder = both(*sites, attn=attn)
    ids_BT = tokens(2, 40).to(DEVICE)
    with torch.no_grad():
        whole_BTV = decoder(ids_BT)
        cache = decoder.new_cache()
        parts = [decoder(ids_BT[:, :17], cache=cache)]
        parts += [decoder(ids_BT[:, t : t + 1], cache=cache) for t in range(17, 40)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole_BTV, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sites", [(), ("q", "k"), ("v", "o"), ("q", "k", "v", "o")], ids="".join)
def test_bf16_is_near_float32(sites: tuple[str, ...]) -> None:
    exact, decoder = both(*sites, sizes=SIZES)
    ids_BT = tokens(2, 48)
    with torch.no_grad():
        exact_BTV = exact(ids_BT)
        with torch.autocast(DEVICE, torch.bfloat16):
            there_BTV = decoder(ids_BT.to(DEVICE))
    error = (there_BTV.double().cpu() - exact_BTV).norm() / exact_BTV.norm()
    assert error < 0.1


@pytest.mark.parametrize("pe", ["qkvo_rope", "alibi"])
def test_a_run_that_was_broken_off_goes_on_bit_for_bit(
    tmp_path: Path, tiny: Callable[..., RunConfig], tiny_overrides: list[str], pe: str
) -> None:
    """A GPU resumes bit for bit only with train.deterministic=true."""
    given = [word for word in tiny_overrides if not word.startswith("run.dir=")]
    words = [*given, f"pe={pe}", f"launch.device={DEVICE}", "train.deterministic=true"]
    words += ["train.num_steps=12", "train.save_every=6", "train.compile=false"]

    whole = tmp_path / "whole"
    assert train(*words, f"run.dir={whole}", cwd=tmp_path).returncode == 0
    parts = tmp_path / "parts"
    assert train(*words, f"run.dir={parts}", cwd=tmp_path).returncode == 0
    for path in (parts / "result.json", *(parts / "checkpoints/step_00000012").iterdir()):
        path.unlink()
    (parts / "checkpoints/step_00000012").rmdir()
    assert train(*words, f"run.dir={parts}", cwd=tmp_path).returncode == 0
    assert_same_run(whole, parts)
