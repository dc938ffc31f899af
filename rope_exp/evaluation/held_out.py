"""The loss on the held-out windows, which is what runs are compared by."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


@torch.no_grad()
def held_out_loss(
    model: nn.Module,
    windows_NT: NDArray[np.int64],
    *,
    micro_batch_size: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda total: total,
) -> float | None:
    """Return the mean nats per token over the windows, the same on every rank.

    Args:
        model: gives the summed nats of `model(ids, targets)`.
        windows_NT: all windows, of seq_len + 1 tokens; the ranks share them.
        micro_batch_size: how many windows at a time.
        should_stop: asked before every micro-batch, and equally often on every rank.
        sum_over_ranks: given this rank's nats, the sum of all ranks' nats.
    Returns:
        The loss; None where `should_stop` said so.
    """
    num_windows, num_tokens = windows_NT.shape
    ids_NT = torch.from_numpy(windows_NT[rank::world_size]).to(device)
    nats = torch.zeros((), dtype=torch.float64, device=device)

    # Every rank loops as often as the one with the largest share: asking whether to stop is a
    # collective call, and all ranks must make it equally often.
    largest_share = math.ceil(num_windows / world_size)

    # Eager: a few batches do not pay for compiling a second graph.
    with torch.compiler.set_stance("force_eager"):
        for start in range(0, largest_share, micro_batch_size):
            if should_stop():
                return None
            micro_BT = ids_NT[start : start + micro_batch_size]
            if len(micro_BT):
                nats += model(micro_BT[:, :-1], micro_BT[:, 1:]).double()

    return float(sum_over_ranks(nats)) / (num_windows * (num_tokens - 1))
