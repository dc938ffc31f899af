"""The loss on the held-out rows, by which runs are compared."""

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
    """Return the mean nats per predicted token, the same on every rank.

    For real numbers, return the mean squared error.

    Args:
        model: `model(ids, targets, ...)` returns summed nats.
        held_out: all rows; the ranks share them.
        micro_batch_size: the number of rows at a time.
        should_stop: called before every micro-batch, and equally often on every rank.
        sum_over_ranks: returns the sum of all ranks' nats, given this rank's.
    Returns:
        The loss; None if `should_stop` returned true.
    """
    mine = on_device(held_out.rows(slice(rank, None, world_size)), device)
    nats = torch.zeros((), dtype=torch.float64, device=device)

    # Every rank loops as often as the one with the largest share: asking whether to stop is a
    # collective call, and all ranks must make it equally often.
    largest_share = math.ceil(len(held_out.ids_BT) / world_size)
    micro_batches = mine.split(micro_batch_size)

    # Eager: compiling a second graph does not pay off for a few batches.
    with torch.compiler.set_stance("force_eager"):
        for _ in range(0, largest_share, micro_batch_size):
            if should_stop():
                return None
            inputs = next(micro_batches, None)
            if inputs is not None:
                nats += inputs.nats(model).double()

    return float(sum_over_ranks(nats)) / held_out.num_targets
