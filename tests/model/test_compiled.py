"""Tests that torch's compiler takes every decoder whole: no part of it needs Python in between."""

import pytest
import torch
from support.configs import REPOSITORY, composed
from support.models import tokens

from rope_exp import cpu_attention
from rope_exp.decoder import Decoder

# Raised by torch's compiler.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SMALL = ("model.hidden_size=32", "model.intermediate_size=48", "model.num_hidden_layers=1")
VOCAB = 64


def choices(folder: str) -> list[str]:
    return sorted(path.stem for path in (REPOSITORY / "configs" / folder).glob("*.yaml"))


def breaks(*words: str) -> list[str]:
    """Return why a decoder with a loss is several graphs; [] if it is one."""
    decoder = Decoder(composed(*SMALL, *words).architecture(VOCAB))
    decoder.initialise(0)
    ids_BT = tokens(2, 24)
    torch._dynamo.reset()
    graphs = torch._dynamo.explain(decoder)(ids_BT, ids_BT)
    assert graphs.graph_count == 1 + len(graphs.break_reasons)
    return [f"{reason.reason}: {reason.user_stack}" for reason in graphs.break_reasons]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use torch's attention at every length, as a GPU does."""
    monkeypatch.setattr(cpu_attention, "MAX_LENGTH", 0)


# The other rotations of the nine are parts of QKVO's.
PARTS = {f"{sites}_rope" for sites in ("q", "k", "v", "o", "qk", "vo", "qkv")}


WORDS = [
    *(f"pe={name}" for name in choices("pe") if name not in PARTS),
    *(f"pe=qkvo_rope pe.trainable=true pe.trainable_scope={s}" for s in ("model", "layer", "head")),
    "pe=qkvo_rope model.token_shift=true",
]


@pytest.mark.parametrize("words", WORDS)
def test_every_position_and_key_is_one_graph(words: str) -> None:
    assert breaks(*words.split()) == []


@pytest.mark.parametrize("attn", choices("attn"))
def test_every_kind_of_attention_is_one_graph(attn: str) -> None:
    sites = composed(f"attn={attn}", "pe=nope").attn.sites()
    assert breaks(f"attn={attn}", f"pe.rotate=[{','.join(sites)}]") == []
