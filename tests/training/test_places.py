"""Tests of training and evaluation with separate documents and random first positions."""

import numpy as np
from support.trainers import Make


def test_evaluation_begins_at_0_and_knows_documents(make: Make) -> None:
    """Held-out rows get documents and positions within them, but no random start."""
    words = ("data.random_start=100", "train.seq_len=64")
    started = make("started", *words).held_out_rows
    assert started.position_BT is started.document_BT is None

    # Documents of the small corpus are longer than 64 tokens; some rows hold the end of one.
    words += ("data.reset_positions=true", "data.document_mask=true", "train.eval_sequences=64")
    rows = make("reset", *words).held_out_rows
    assert rows.position_BT is not None
    assert rows.document_BT is not None
    begins_BT = rows.ids_BT == 256
    assert 0 < begins_BT.sum() < begins_BT.size / 16
    assert (rows.position_BT[begins_BT] == 0).all()
    assert (rows.position_BT[:, 0] == 0).all()
    assert (rows.position_BT.max(axis=1) == 63)[~begins_BT.any(axis=1)].all()
    assert np.array_equal(np.diff(rows.document_BT, axis=1) == 1, begins_BT[:, 1:])
