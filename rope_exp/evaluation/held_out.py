"""The loss on the held-out rows, which is what runs are compared by."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rope_exp.data.batches import Batch
from rope_exp.evaluation.inputs import on_device


@torch.no_grad()
def held_out_loss(
    model: nn.Module,
    held_out: Batch,
    *,
    micro_batch_size: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda total: total,
) -> float | None:
    """Return the mean nats of a token that is to be predicted, the same on every rank.

    Of real numbers that are to be predicted, the mean squared error.

    Args:
        model: gives the summed nats of `model(ids, targets, ...)`.
        held_out: all rows; the ranks share them.
        micro_batch_size: how many rows at a time.
        should_stop: asked before every micro-batch, and equally often on every rank.
        sum_over_ranks: given this rank's nats, the sum of all ranks' nats.
    Returns:
        The loss; None where `should_stop` said so.
    """
    mine = on_device(held_out.rows(slice(rank, None, world_size)), device)
    nats = torch.zeros((), dtype=torch.float64, device=device)

    # Every rank loops as often as the one with the largest share: asking whether to stop is a
    # collective call, and all ranks must make it equally often.
    largest_share = math.ceil(len(held_out.ids_BT) / world_size)
    micro_batches = mine.split(micro_batch_size)

    # Eager: a few batches do not pay for compiling a second graph.
    with torch.compiler.set_stance("force_eager"):
        for _ in range(0, largest_share, micro_batch_size):
            if should_stop():
                return None
            inputs = next(micro_batches, None)
            if inputs is not None:
                nats += inputs.nats(model).double()

    return float(sum_over_ranks(nats)) / held_out.num_targets
