"""Tests of a run's answers to probes by place: each number has its name and its place."""

from rope_exp.evidence.places import by_place


def test_positions_are_lengths_and_bins() -> None:
    answer = {
        "num_windows": 8,
        "edges": [0, 1, 2, 4],
        "loss": [5.0, 4.5, 4.0],
        "lengths": [2, 4],
        "loss_at_length": [4.75, 4.5],
    }
    assert by_place("positions", answer) == {
        "positions": {2: 4.75, 4: 4.5},
        # Each bin is keyed by its first position.
        "bins": {0: 5.0, 1: 4.5, 2: 4.0},
    }


def test_losses_are_at_starts_and_sites() -> None:
    assert by_place("shift", {"start": [0, 64], "loss": [4.0, 4.25]}) == {
        "shift": {0: 4.0, 64: 4.25}
    }
    assert by_place("ablation", {"without": ["", "q"], "loss": [4.0, 4.5]}) == {
        "ablation": {"": 4.0, "q": 4.5}
    }


def test_weights_by_distance_are_means_over_layers() -> None:
    answer = {
        "m": [0, 1],
        "attention": {"0": [0.5, 0.25], "1": [0.25, 0.75]},
        "uniform": [0.1, 0.2],
    }
    assert by_place("distance", answer) == {
        "distance": {0: 0.375, 1: 0.5},
        "uniform": {0: 0.1, 1: 0.2},
    }
