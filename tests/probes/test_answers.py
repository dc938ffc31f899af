"""Tests of exact matches against greedy decoding, and of losses and R² against plain loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder
from rope_exp.evaluate import Finished, held_out_loss, on_device
from rope_exp.generated import Generated, open_data
from rope_exp.sources import held_out_rows

CPU = torch.device("cpu")
SIZES = (
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.num_hidden_layers=2",
    "train.eval_sequences=5",
)


def config_of(kind: str, *overrides: str) -> RunConfig:
    return run_config([f"data={kind}", *SIZES, *overrides])


def data_of(config: RunConfig) -> Generated:
    found = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    assert isinstance(found, Generated)
    return found


def decoder_of(config: RunConfig) -> Decoder:
    decoder = Decoder(config.architecture(data_of(config).vocab_size))
    decoder.initialise(0)
    return decoder


def ask(config: RunConfig, decoder: Any, name: str) -> dict[str, Any]:
    answers = Finished(decoder, config, data_of(config), 2).ask([name])
    assert answers is not None
    answer: dict[str, Any] = answers[name]
    return answer


@pytest.mark.parametrize("kind", ["addition", "copy", "retrieval"])
def test_an_exact_match_is_what_greedy_decoding_writes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy decoding starts from the question alone.

    Every second answer is replaced by its output, so that half of the answers match. Each counts
    once, under its span.
    """
    config = config_of(kind, "train.eval_sequences=2")
    decoder = decoder_of(config)
    with torch.no_grad():
        decoder.lm_head.weight.mul_(20)
    data = data_of(config)

    rows = data.rows("test", range(2))
    matches: dict[int, list[bool]] = {}
    for ids_S, answer_T, span_T in zip(rows.ids_NS, rows.answer_NT, rows.span_NT, strict=True):
        for number in range(answer_T.max() + 1):
            places = np.flatnonzero(answer_T == number)
            written = ids_S[: places[0] + 1].tolist()
            with torch.no_grad():
                for _ in places:
                    logits_V = decoder(torch.tensor([written]))[0, -1]
                    written.append(int(logits_V.argmax()))
            if number % 2 == 0:
                ids_S[: len(written)] = written
            is_match = written == ids_S[: len(written)].tolist()
            matches.setdefault(int(span_T[places[0]]), []).append(is_match)

    monkeypatch.setattr(Generated, "rows", lambda *_: rows)
    found = ask(config, decoder, "answers")["test"]
    spans = sorted(matches)
    assert found["span"] == spans
    assert found["count"] == [len(matches[span]) for span in spans]
    assert found["right"] == [sum(matches[span]) for span in spans]
    assert 0 < sum(found["right"]) < sum(found["count"])


@pytest.mark.parametrize("kind", ["addition", "copy", "retrieval"])
def test_the_loss_is_of_answers_alone(kind: str) -> None:
    """The loss is the mean of -log p over the answers' tokens, here summed one by one in float64.

    It equals the held-out loss of a run.
    """
    config = config_of(kind)
    decoder = decoder_of(config)
    rows = data_of(config).rows("test", range(5))

    nats = []
    for ids_S, mask_T in zip(rows.ids_NS, rows.mask_NT, strict=True):
        with torch.no_grad():
            logits_TV = decoder(torch.from_numpy(ids_S[None, :-1]))[0].tolist()
        for place in np.flatnonzero(mask_T):
            largest = max(logits_TV[place])
            total = sum(math.exp(logit - largest) for logit in logits_TV[place])
            nats.append(largest + math.log(total) - logits_TV[place][ids_S[place + 1]])
    expected = math.fsum(nats) / len(nats)

    batch = held_out_rows(config, data_of(config))
    assert held_out_loss(decoder, batch, micro_batch_size=2, device=CPU) == pytest.approx(
        expected, abs=1e-5
    )
    found = ask(config, decoder, "answers")
    assert found["test"]["loss"] == pytest.approx(expected, abs=1e-5)


def test_r2_is_that_of_a_plain_loop() -> None:
    config = config_of("spikes")
    decoder = decoder_of(config)
    with torch.no_grad():
        decoder.lm_head.weight.mul_(40)
    fit = ask(config, decoder, "fit")

    batch = held_out_rows(config, data_of(config))
    inputs = on_device(batch, CPU)
    with torch.no_grad():
        guess_NQD = decoder(inputs.ids_BT, **inputs.further).numpy().astype(float)
    truth_NQD = batch.target_BP
    for dim in range(2):
        truth = truth_NQD[:, :, dim].ravel().astype(float)
        errors = (guess_NQD[:, :, dim].ravel() - truth) ** 2
        expected = 1 - errors.sum() / ((truth - truth.mean()) ** 2).sum()
        assert fit["r2_of_dims"][dim] == pytest.approx(expected, abs=1e-5)
    assert fit["r2"] == pytest.approx(np.mean(fit["r2_of_dims"]), abs=1e-6)
    assert len(fit["error_of_queries"]) == 16
    loss = held_out_loss(decoder, batch, micro_batch_size=2, device=CPU)
    assert np.mean(fit["error_of_queries"]) == pytest.approx(loss, abs=1e-5)
