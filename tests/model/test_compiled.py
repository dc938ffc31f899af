"""Tests that torch's compiler takes every decoder whole: no part of it needs Python in between."""

import pytest
import torch
from support.configs import REPOSITORY, composed
from support.models import tokens

from rope_exp import attention as kernel
from rope_exp.decoder import Decoder

# Raised by torch's compiler.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SMALL = ("model.hidden_size=32", "model.intermediate_size=48", "model.num_hidden_layers=2")
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
    monkeypatch.setattr(kernel, "MAX_WRITTEN_OUT", 0)


# The other rotations of the nine are parts of QKVO's.
PARTS = {f"{sites}_rope" for sites in ("q", "k", "v", "o", "qk", "vo", "qkv")}


@pytest.mark.parametrize("pe", [name for name in choices("pe") if name not in PARTS])
def test_every_position_is_one_graph(pe: str) -> None:
    assert breaks(f"pe={pe}") == []


@pytest.mark.parametrize("attn", choices("attn"))
def test_every_kind_of_attention_is_one_graph(attn: str) -> None:
    sites = composed(f"attn={attn}", "pe=nope").attn.sites()
    assert breaks(f"attn={attn}", f"pe.rotate=[{','.join(sites)}]") == []


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["pe.trainable=true", f"pe.trainable_scope={scope}"]
            for scope in ("model", "layer", "head")
        ),
        ["model.token_shift=true"],
    ],
    ids=str,
)
def test_what_a_key_adds_is_one_graph(words: list[str]) -> None:
    assert breaks("pe=qkvo_rope", *words) == []
