"""Tests that a document within a row, with its own positions and mask, is read as if alone."""

from typing import Any

import numpy as np
import pytest
import torch
from support.corpora import data_config
from support.kinds import KINDS
from support.models import SUBSETS, VOCAB, make_sizes, num_numbers, opinionated
from torch import Tensor

from rope_exp.batches import next_tokens, placed
from rope_exp.decoder import Decoder
from rope_exp.evaluate import Inputs, on_device
from rope_exp.sections import Kind, ModelConfig

END = 0
# A row of 24 tokens has three documents: 5 tokens of one that began before it, then 8 and 11.
LENGTHS = (5, 8, 11)


def decoder_of(rotate: tuple[str, ...], attn: Kind, sizes: ModelConfig, **changes: Any) -> Decoder:
    decoder = opinionated(*rotate, attn=attn, sizes=sizes, num_positions=64, **changes)
    return decoder.double().eval()


def row_of(seed: int) -> np.ndarray:
    """Return a row of three documents, and the token that ends the last."""
    random = np.random.default_rng(seed)
    parts = [random.integers(1, VOCAB, size=length) for length in LENGTHS]
    for part in parts[1:]:
        part[0] = END
    return np.concatenate([*parts, [END]])[None]


def nats(decoder: Decoder, windows: np.ndarray, **data: bool) -> Tensor:
    """Return -log p of each token but the first of one window."""
    batch = placed(next_tokens(windows), data_config(kind="stdlib", **data), END)
    inputs: Inputs = on_device(batch, torch.device("cpu"))
    with torch.no_grad():
        logits_BTV = decoder(
            inputs.ids_BT, positions_BT=inputs.position_BT, document_BT=inputs.document_BT
        )
    return torch.nn.functional.cross_entropy(logits_BTV[0], inputs.target_BP[0], reduction="none")


def check(decoder: Decoder, *, is_absolute: bool) -> None:
    """Assert that each document's losses in the row equal those that it has alone.

    Without the mask they differ, and without the reset they differ for absolute variants.
    """
    ends = np.cumsum(LENGTHS)
    for seed in range(3):
        row = row_of(seed)
        whole = nats(decoder, row, reset_positions=True, document_mask=True)
        for first, last in zip(ends - LENGTHS, ends, strict=True):
            alone = nats(decoder, row[:, first : last + 1])
            assert float((whole[first:last] - alone).abs().max()) < 1e-6

    later = slice(LENGTHS[0] + 1, None)
    moved = {}
    for key in ("reset_positions", "document_mask"):
        alone = nats(decoder, row, **{key: True})
        moved[key] = float((alone - whole)[later].abs().max())
    assert moved["reset_positions"] > 1e-3
    assert (moved["document_mask"] > 1e-3) == is_absolute


@pytest.mark.parametrize("rotate", SUBSETS, ids="".join)
def test_a_document_is_read_as_if_alone(rotate: tuple[str, ...]) -> None:
    is_relative = ("q" in rotate) == ("k" in rotate) and ("v" in rotate) == ("o" in rotate)
    check(decoder_of(rotate, KINDS[0], make_sizes()), is_absolute=not is_relative)


def test_documents_beside_a_cache_are_refused() -> None:
    """Nothing may be cached, because later tokens would attend to other documents' keys."""
    decoder = decoder_of(("q", "k"), KINDS[0], make_sizes())
    ids_BT = torch.from_numpy(row_of(0)[:, :-1])
    document_BT = torch.arange(ids_BT.shape[1])[None] // 5
    cache = decoder.new_cache()
    with pytest.raises(ValueError, match="documents take the whole rows at once"):
        decoder(ids_BT, cache=cache, document_BT=document_BT)
    assert cache.length == 0 == num_numbers(cache)
