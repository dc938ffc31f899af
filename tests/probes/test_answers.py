"""Tests of exact matches, losses and R² against plain loops, and of verdicts by exact matches."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.probes import Finished
from support.records import at_seed, ended_at, runs_of

from rope_exp.batches import held_out_rows
from rope_exp.compose import run_config
from rope_exp.decoder import Decoder, held_out_loss, on_device
from rope_exp.notes.verdicts import outcomes
from rope_exp.prepare import open_data
from rope_exp.probes.answers import files, match_relations, tables
from rope_exp.report import Report, build, table_md

CPU = torch.device("cpu")
SIZES = ("model.hidden_size=32", "model.intermediate_size=48", "model.num_hidden_layers=2")


def prepared(kind: str, num_rows: int = 5, scale: float = 1) -> Finished:
    """Return a model of generated data, with a head of larger weights."""
    config = run_config([f"data={kind}", *SIZES, f"train.eval_sequences={num_rows}"])
    data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    decoder = Decoder(config.architecture(data.vocab_size))
    decoder.initialise(0)
    with torch.no_grad():
        decoder.lm_head.weight.mul_(scale)
    return Finished(decoder, config, data, 2)


@pytest.mark.parametrize("kind", ["addition", "copy", "retrieval"])
@torch.no_grad()
def test_an_exact_match_is_what_greedy_decoding_writes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy decoding starts from the question alone.

    Every second answer is replaced by its output, so that half of the answers match. Each counts
    once, under its span.
    """
    model = prepared(kind, num_rows=2, scale=20)
    rows = model.data.rows("test", range(2))
    matches: dict[int, list[bool]] = {}
    for ids_S, example_T, span_T in zip(rows.ids_NS, rows.example_NT, rows.span_NT, strict=True):
        for number in range(example_T.max() + 1):
            places = np.flatnonzero(example_T == number)
            written = ids_S[: places[0] + 1].tolist()
            for _ in places:
                written.append(int(model.decoder(torch.tensor([written]))[0, -1].argmax()))
            if number % 2 == 0:
                ids_S[: len(written)] = written
            is_match = written == ids_S[: len(written)].tolist()
            matches.setdefault(int(span_T[places[0]]), []).append(is_match)

    monkeypatch.setattr(type(model.data), "rows", lambda *_: rows)
    found = model.answer("answers")["test"]
    spans = sorted(matches)
    assert found["span"] == spans
    assert found["count"] == [len(matches[span]) for span in spans]
    assert found["right"] == [sum(matches[span]) for span in spans]
    assert 0 < sum(found["right"]) < sum(found["count"])


@pytest.mark.parametrize("kind", ["addition", "copy", "retrieval"])
@torch.no_grad()
def test_the_loss_is_of_answers_alone(kind: str) -> None:
    """The loss is the mean of -log p over the answers' tokens, and the held-out loss of a run."""
    model = prepared(kind)
    rows = model.data.rows("test", range(5))
    ids_NS = torch.from_numpy(rows.ids_NS)
    log_p_NTV = model.decoder(ids_NS[:, :-1]).double().log_softmax(-1)
    nats_NT = -log_p_NTV.gather(2, ids_NS[:, 1:, None])[:, :, 0].numpy()
    expected = pytest.approx(nats_NT[rows.mask_NT].mean(), abs=1e-5)

    batch = held_out_rows(model.config, model.data)
    assert held_out_loss(model.decoder, batch, micro_batch_size=2) == expected
    assert model.answer("answers")["test"]["loss"] == expected


@torch.no_grad()
def test_r2_is_that_of_a_plain_loop() -> None:
    model = prepared("spikes", scale=40)
    fit = model.answer("fit")
    batch = held_out_rows(model.config, model.data)
    inputs = on_device(batch, CPU)
    guess_NQD = model.decoder(inputs.ids_BT, **inputs.model_kwargs).numpy().astype(float)
    for dim in range(2):
        truth = batch.target_BP[:, :, dim].astype(float)
        errors = guess_NQD[:, :, dim] - truth
        assert fit["r2_of_dims"][dim] == pytest.approx(
            1 - np.mean(errors**2) / np.var(truth), abs=1e-5
        )
    assert fit["r2"] == pytest.approx(np.mean(fit["r2_of_dims"]), abs=1e-6)
    assert len(fit["error_of_queries"]) == 16
    loss = held_out_loss(model.decoder, batch, micro_batch_size=2)
    assert np.mean(fit["error_of_queries"]) == pytest.approx(loss, abs=1e-5)


SHARES = {"qk_rope": 0.7, "qkvo_rope": 0.9, "vo_rope": 0.8, "nope": 0.5}
PAIR = ("qk_rope", "qkvo_rope")
Share = Callable[[str, int], float]


def with_shares(share: Share, rows: tuple[str, ...] = PAIR) -> Report:
    """Return the report on recorded runs of `addition` as if they answered these shares right.

    By their losses the relation is open.
    """
    runs = []
    for run, seed in itertools.product(runs_of("addition", *rows), range(5)):
        found = {}
        for split, answer in run.probes["answers"].items():
            right = [round(count * share(run.row, seed)) for count in answer["count"]]
            found[split] = {**answer, "right": right}
        ended = ended_at(at_seed(run, seed), 1 + 0.01 * (seed * len(run.row) % 3))
        runs.append(replace(ended, probes={"answers": found}))
    return build(runs, ["pe"])


@pytest.mark.parametrize(
    ("levels", "outcome"),
    [
        ((0.7, 0.9), "confirmed"),
        ((0.9, 0.7), "contradicted"),
        ((1.0, 1.0), "open; floor or ceiling effect"),
        ((0.0, 0.0), "open; floor or ceiling effect"),
    ],
)
def test_ropers_claim_is_judged_by_matches(levels: tuple[float, float], outcome: str) -> None:
    """QKVO > QK is judged by the share of wrong answers, and is open if none or all are right."""
    fixed = dict(zip(PAIR, levels, strict=True))

    def share(row: str, seed: int) -> float:
        return fixed[row] + 0.01 * (seed * len(row) % 3) * (0 < fixed[row] < 1)

    report = with_shares(share)
    relations = match_relations(report)
    assert [relation["split"] for relation in relations] == ["test", "longer"]
    for relation in relations:
        assert relation["a"] == "qkvo_rope"
        assert relation["b"] == "qk_rope"
        assert relation["outcome"] == outcome
    assert outcome in "\n".join(tables(report))


def test_a_task_without_mistakes_opens_both_measures() -> None:
    """If all answers are right, the verdict by losses is open too; if none is, it stays."""
    [by_losses] = outcomes(with_shares(lambda *_: 0.0))
    assert "too easy" not in by_losses["outcome"]
    found = with_shares(lambda *_: 1.0)
    assert [pair["outcome"] for pair in outcomes(found)] == ["open; the task is too easy"]
    assert "| open; the task is too easy |" in table_md(found)


def test_other_initial_weights_take_what_is_published() -> None:
    """Published numbers and claims are for training from scratch, so neither is shown."""
    runs = runs_of("roper")
    assert any("Harik" in note for note in build(runs, ["pe"]).texts("notes"))
    began = [replace(run, config=replace(run.config, init_weights="0" * 64)) for run in runs]
    found = build(began, ["pe"])
    assert found.source.source == ""
    assert outcomes(found) == []
    assert "Initial weights: 000000000000 from a finished run" in "".join(
        found.texts("assumptions")
    )


def test_several_kinds_of_data_have_no_common_answers() -> None:
    """Spans and bins are of one kind, so a table over kinds shows losses alone."""
    runs = [*runs_of("copy", "qk_rope", seeds=(0,)), *runs_of("retrieval", "qk_rope", seeds=(0,))]
    report = build(runs, ["data", "model", "train", "optim", "schedule"])
    assert files(report) == {}
    assert tables(report) == []


def test_text_beside_a_task_has_no_common_answers() -> None:
    runs = [*runs_of("copy", "qk_rope", seeds=(0,)), *runs_of("english", "qk_rope", seeds=(0,))]
    report = build(runs, ["data", "tokenizer", "model", "train", "optim", "schedule"])
    assert files(report) == {}
    assert tables(report) == []
