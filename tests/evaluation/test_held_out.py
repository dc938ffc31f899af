"""Tests that the held-out loss is a mean over all windows, for any micro-batches and ranks."""

import numpy as np
import pytest
import torch

from rope_exp.batches import next_tokens
from rope_exp.compose import run_config
from rope_exp.decoder import Decoder
from rope_exp.evaluate import held_out_loss

CPU = torch.device("cpu")
NUM_WINDOWS = 7


@pytest.fixture(scope="module")
def model() -> Decoder:
    config = run_config(["model.hidden_size=32", "model.intermediate_size=48"])
    decoder = Decoder(config.architecture(64))
    decoder.initialise(0)
    return decoder


@pytest.fixture(scope="module")
def windows_NT() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 64, size=(NUM_WINDOWS, 17))


@pytest.mark.parametrize("micro_batch_size", [1, 3, 7, 100])
def test_it_is_the_mean_of_minus_log_p(
    model: Decoder, windows_NT: np.ndarray, micro_batch_size: int
) -> None:
    ids = torch.from_numpy(windows_NT)
    with torch.no_grad():
        log_p = torch.log_softmax(model(ids[:, :-1]).double(), dim=-1)
    expected = -log_p.gather(-1, ids[:, 1:, None]).mean().item()
    loss = held_out_loss(
        model, next_tokens(windows_NT), micro_batch_size=micro_batch_size, device=CPU
    )
    assert loss == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 3, 10])
def test_ranks_share_the_windows_and_ask_equally_often(
    model: Decoder, windows_NT: np.ndarray, world_size: int
) -> None:
    """Each window counts once, and a rank without windows calls `should_stop` as often too."""
    nats: list[float] = []
    asked = [0] * world_size

    def share(rank: int) -> None:
        def should_stop() -> bool:
            asked[rank] += 1
            return False

        def sum_over_ranks(total: torch.Tensor) -> torch.Tensor:
            nats.append(float(total))
            return total

        held_out_loss(
            model,
            next_tokens(windows_NT),
            micro_batch_size=2,
            device=CPU,
            rank=rank,
            world_size=world_size,
            should_stop=should_stop,
            sum_over_ranks=sum_over_ranks,
        )

    for rank in range(world_size):
        share(rank)
    whole = held_out_loss(model, next_tokens(windows_NT), micro_batch_size=2, device=CPU)
    assert sum(nats) / (NUM_WINDOWS * 16) == pytest.approx(whole, abs=1e-6)
    assert len(set(asked)) == 1


def test_asked_to_stop_it_gives_nothing(model: Decoder, windows_NT: np.ndarray) -> None:
    answers = iter([False, False, True])
    loss = held_out_loss(
        model,
        next_tokens(windows_NT),
        micro_batch_size=2,
        device=CPU,
        should_stop=lambda: next(answers),
    )
    assert loss is None
    assert list(answers) == []
