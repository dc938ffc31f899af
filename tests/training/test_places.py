"""Tests of training and evaluation with separate documents and random first positions."""

import numpy as np
import pytest
from support.trainers import Make, losses

from rope_exp.files import read_json

DOCUMENTS = ("data.reset_positions=true", "data.document_mask=true")
START = "data.random_start=100"
# At this learning rate, attention leaves its uniform beginning within six steps.
FAST = ("optim.lr=0.1", "train.seq_len=64")


@pytest.mark.parametrize("rotate", ["[]", "[q,k]", "[v,o]", "[q,k,v,o]", "[k]", "[v]"])
def test_only_absolute_variants_feel_where_a_row_begins(make: Make, rotate: str) -> None:
    """A random start shifts all positions of a row, which changes no relative distance."""
    plain = make("plain", f"pe.rotate={rotate}", *FAST)
    moved = make("moved", f"pe.rotate={rotate}", START, *FAST)
    assert (plain.train(), moved.train()) == ("finished", "finished")
    of_plain, of_moved = (np.array([row[1] for row in losses(each)]) for each in (plain, moved))
    difference = np.abs(of_plain - of_moved).max()
    assert (difference > 1e-3) == (rotate in ("[k]", "[v]"))

    results = [read_json(trainer.folder / "result.json") for trainer in (plain, moved)]
    assert results[0]["order_sha256"] != results[1]["order_sha256"]
    assert results[0]["init_sha256"] == results[1]["init_sha256"]


def test_evaluation_begins_at_0_and_knows_documents(make: Make) -> None:
    """Held-out rows get documents and positions within them, but no random start."""
    started = make("started", START, "train.seq_len=64")
    assert started.held_out_rows.position_BT is None
    assert started.held_out_rows.document_BT is None

    # Documents of the small corpus are longer than 64 tokens; some rows hold the end of one.
    reset = make("reset", START, *DOCUMENTS, "train.seq_len=64", "train.eval_sequences=64")
    rows = reset.held_out_rows
    assert rows.position_BT is not None
    assert rows.document_BT is not None
    begins_BT = rows.ids_BT == 256
    assert 0 < begins_BT.sum() < begins_BT.size / 16
    assert (rows.position_BT[begins_BT] == 0).all()
    assert (rows.position_BT[:, 0] == 0).all()
    assert (rows.position_BT.max(axis=1) == 63)[~begins_BT.any(axis=1)].all()
    assert np.array_equal(np.diff(rows.document_BT, axis=1) == 1, begins_BT[:, 1:])
