"""Tests of the objective mlm: the mask's id, its place in all counts, and refusals."""

import torch
from support.models import VOCAB, make_pe, make_sizes, tokens
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rope_exp.compose import resolve, run_config
from rope_exp.config import RunConfig, TrainConfig
from rope_exp.costs import flops_per_token, num_parameters
from rope_exp.decoder import Decoder
from rope_exp.plan.tables import checkpoint_bytes

MLM = "train.objective=mlm"


def test_the_mask_is_one_id_past_the_tokenizers() -> None:
    causal = run_config([]).architecture(2048)
    mlm = run_config([MLM]).architecture(2048)
    assert (causal.vocab_size, causal.causal) == (2048, True)
    assert (mlm.vocab_size, mlm.causal) == (2049, False)
    # The mask adds a row to the embedding and one to the head, also in a checkpoint.
    assert num_parameters(mlm) - num_parameters(causal) == 2 * 128
    sizes = [checkpoint_bytes(resolve(run_config([*words])), 2048) for words in ([], [MLM])]
    assert sizes[1] - sizes[0] == 12 * 2 * 128


def test_counted_operations_are_those_that_torch_does() -> None:
    """Each query attends to T keys, and the head acts only at the predicted places."""
    length = 32
    train = TrainConfig(seq_len=length, objective="mlm")
    sizes = make_sizes(num_key_value_heads=4)
    config = RunConfig(pe=make_pe("q", "k"), model=sizes, train=train)
    decoder = Decoder(config.architecture(VOCAB))
    ids_BT = tokens(1, length)
    place_BP = torch.arange(config.num_predicted(length))[None]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        decoder(ids_BT, ids_BT[:, : place_BP.shape[1]], predicted_BP=place_BP).backward()
    # flops_per_token is rounded down to a whole number.
    assert counter.get_total_flops() // length == flops_per_token(config, VOCAB)
