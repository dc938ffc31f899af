"""Tests of exact matches against greedy decoding, and of losses and R² against plain loops."""

from typing import Any

import numpy as np
import pytest
import torch
from support.probes import Finished

from rope_exp.batches import held_out_rows
from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder, held_out_loss, on_device
from rope_exp.prepare import open_data

CPU = torch.device("cpu")
SIZES = (
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.num_hidden_layers=2",
)


Prepared = tuple[RunConfig, Any, Decoder]


def prepared(kind: str, num_rows: int = 5, scale: float = 1) -> Prepared:
    """Return a config, its data, and a decoder with a head of larger weights."""
    config = run_config([f"data={kind}", *SIZES, f"train.eval_sequences={num_rows}"])
    data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    decoder = Decoder(config.architecture(data.vocab_size))
    decoder.initialise(0)
    with torch.no_grad():
        decoder.lm_head.weight.mul_(scale)
    return config, data, decoder


def ask(of: Prepared, name: str) -> dict[str, Any]:
    config, data, decoder = of
    answers = Finished(decoder, config, data, 2).ask([name])
    assert answers is not None
    answer: dict[str, Any] = answers[name]
    return answer


@pytest.mark.parametrize("kind", ["addition", "copy", "retrieval"])
@torch.no_grad()
def test_an_exact_match_is_what_greedy_decoding_writes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy decoding starts from the question alone.

    Every second answer is replaced by its output, so that half of the answers match. Each counts
    once, under its span.
    """
    of = prepared(kind, num_rows=2, scale=20)
    _, data, decoder = of
    rows = data.rows("test", range(2))
    matches: dict[int, list[bool]] = {}
    for ids_S, answer_T, span_T in zip(rows.ids_NS, rows.answer_NT, rows.span_NT, strict=True):
        for number in range(answer_T.max() + 1):
            places = np.flatnonzero(answer_T == number)
            written = ids_S[: places[0] + 1].tolist()
            for _ in places:
                written.append(int(decoder(torch.tensor([written]))[0, -1].argmax()))
            if number % 2 == 0:
                ids_S[: len(written)] = written
            is_match = written == ids_S[: len(written)].tolist()
            matches.setdefault(int(span_T[places[0]]), []).append(is_match)

    monkeypatch.setattr(type(data), "rows", lambda *_: rows)
    found = ask(of, "answers")["test"]
    spans = sorted(matches)
    assert found["span"] == spans
    assert found["count"] == [len(matches[span]) for span in spans]
    assert found["right"] == [sum(matches[span]) for span in spans]
    assert 0 < sum(found["right"]) < sum(found["count"])


@pytest.mark.parametrize("kind", ["addition", "copy", "retrieval"])
@torch.no_grad()
def test_the_loss_is_of_answers_alone(kind: str) -> None:
    """The loss is the mean of -log p over the answers' tokens, and the held-out loss of a run."""
    of = prepared(kind)
    config, data, decoder = of
    rows = data.rows("test", range(5))
    ids_NS = torch.from_numpy(rows.ids_NS)
    log_p_NTV = decoder(ids_NS[:, :-1]).double().log_softmax(-1)
    nats_NT = -log_p_NTV.gather(2, ids_NS[:, 1:, None])[:, :, 0].numpy()
    expected = pytest.approx(nats_NT[rows.mask_NT].mean(), abs=1e-5)

    batch = held_out_rows(config, data)
    assert held_out_loss(decoder, batch, micro_batch_size=2, device=CPU) == expected
    assert ask(of, "answers")["test"]["loss"] == expected


@torch.no_grad()
def test_r2_is_that_of_a_plain_loop() -> None:
    of = prepared("spikes", scale=40)
    config, data, decoder = of
    fit = ask(of, "fit")
    batch = held_out_rows(config, data)
    inputs = on_device(batch, CPU)
    guess_NQD = decoder(inputs.ids_BT, **inputs.further).numpy().astype(float)
    for dim in range(2):
        truth = batch.target_BP[:, :, dim].astype(float)
        errors = guess_NQD[:, :, dim] - truth
        assert fit["r2_of_dims"][dim] == pytest.approx(
            1 - np.mean(errors**2) / np.var(truth), abs=1e-5
        )
    assert fit["r2"] == pytest.approx(np.mean(fit["r2_of_dims"]), abs=1e-6)
    assert len(fit["error_of_queries"]) == 16
    loss = held_out_loss(decoder, batch, micro_batch_size=2, device=CPU)
    assert np.mean(fit["error_of_queries"]) == pytest.approx(loss, abs=1e-5)
