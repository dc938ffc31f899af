"""Tests that every file of probes/ keeps: who is asked, what is answered, and nothing left behind.

A probe is asked of a small decoder of the run that its name has in SUITED, or of the default run.
"""

import itertools
import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.configs import composed
from support.harm import HARMS, places, with_harm
from support.models import VOCAB, make_sizes, opinionated
from support.probes import END, HELD_OUT, Finished
from support.refused import refused
from support.reports import all_runs, ask, judge, make_run

from rope_exp.errors import ConfigError, RunFolderError
from rope_exp.folder import answer_leaf, check_probes, with_nan
from rope_exp.identity import choice_names, convert
from rope_exp.prepare import open_data
from rope_exp.probes._windows import attentions
from rope_exp.report import parts

SMALL = ("train.seq_len=16", "train.eval_sequences=16")
SUITED = {
    "floors": ("attn=linear", *SMALL),
    "drift": ("pe.trainable=true", *SMALL),
    "token_shift": ("model.token_shift=true", *SMALL),
    "answers": ("data=addition", "train.seq_len=64", "train.eval_sequences=5"),
    "fit": ("data=spikes", "train.seq_len=64", "train.eval_sequences=5"),
}
each_probe = pytest.mark.parametrize("name", choice_names("probes"))


def model_of(name: str, **changes: Any) -> Finished:
    """Return a small model that can be asked for a probe, on text or on generated data."""
    config = composed("pe=qkvo_rope", *SUITED.get(name, SMALL), f"train.probes=[{name}]")
    data: Any = SimpleNamespace(
        tokens={"validation": HELD_OUT}, corpus={"end_id": END}, vocab_size=VOCAB
    )
    if config.task:
        data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    decoder = opinionated(
        *"qkvo",
        attn=config.attn,
        sizes=make_sizes(token_shift=config.model.token_shift),
        trainable=config.pe.trainable,
        vocab_size=data.vocab_size,
        causal=config.causal,
        num_outputs=config.task and config.task.num_outputs,
    )
    return Finished(decoder, config, data, 4, **changes)


def trace(model: Finished) -> list[Any]:
    """Return everything about a decoder that a probe could leave changed."""
    decoder = model.decoder
    attributes = [sorted(vars(module)) for module in decoder.modules()]
    sites = [layer.sites for layer in attentions(decoder)]
    weights = [parameter.tolist() for parameter in decoder.parameters()]
    return [attributes, sites, decoder.model.start, weights, torch.is_grad_enabled()]


@pytest.mark.parametrize("member", ["why_not", "ask", "ANSWER", "REPORT"])
def test_a_file_without_a_member_is_refused(monkeypatch: pytest.MonkeyPatch, member: str) -> None:
    """A run that asks such a probe does not start, and its answers are not reported."""
    monkeypatch.delattr(f"rope_exp.probes.shift.{member}")
    missing = f"=shift: rope_exp/probes/shift.py must define {member} (docs/extending.md)"
    with refused(f"train.probes{missing}", by=ConfigError):
        composed("train.probes=[shift]")
    if member == "ANSWER":
        with refused(f"train.probes{missing}", by=ConfigError):
            answer_leaf("shift")
    if member == "REPORT":
        with refused(f"probes{missing}", by=ConfigError):
            parts("probes")


@each_probe
def test_an_answer_is_plain(name: str) -> None:
    """It is the same when asked again, is read back from JSON as it was, and has its type."""
    model = model_of(name)
    before = trace(model)
    answers = model.ask([name])
    assert answers is not None
    assert list(answers) == [name]
    assert json.loads(json.dumps(answers)) == answers == model.ask([name])
    assert trace(model) == before
    assert convert(answer_leaf(name).ANSWER, answers[name]) == answers[name]


@each_probe
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_a_harmed_answer_is_refused_or_reported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    """A record from somebody else may hold an answer of another shape, with a valid digest.

    Each place gets one of HARMS; the torture test tries all of them at each place.
    """
    monkeypatch.setattr("rope_exp.svg.drawn", lambda draw, report: draw(report) and None)
    model = model_of(name)
    answers = model.ask([name])
    assert answers is not None
    folders = [
        make_run(tmp_path, pe="qkvo_rope", seed=seed, overrides=SUITED.get(name, SMALL), env={})
        for seed in (0, 1)
    ]
    for folder in folders:
        ask(folder, answers)
    other, run = all_runs(tmp_path)
    judge([other, run])

    num_refused = 0
    few = [*zip(places(answers), itertools.cycle(HARMS), strict=False)]
    tried = [*itertools.product(places(answers), HARMS)] if every else few
    for place, harm in tried:
        harmed = with_harm(answers, place, harm)
        try:
            check_probes(folders[1], harmed, {}, run.config)
        except RunFolderError:
            num_refused += 1
        else:
            judge([other, replace(run, probes=with_nan(harmed))])
    assert num_refused >= len(tried) / 2


@each_probe
@pytest.mark.parametrize("broken", [False, True])
def test_it_stops_before_any_pass_and_leaves_no_trace(name: str, broken: bool) -> None:
    """Each pass of the decoder follows a question whether to stop, or a failure there."""
    events: list[str] = []
    last = math.inf

    def should_stop() -> bool:
        is_last = events.count("asked") >= last
        events.append("asked")
        if is_last and broken:
            raise ZeroDivisionError
        return is_last

    model = model_of(name, should_stop=should_stop)
    model.decoder.model.register_forward_pre_hook(lambda *_: events.append("passed"))
    before = trace(model)
    assert model.ask([name]) is not None
    assert events == ["asked", "passed"] * (len(events) // 2)

    for last in range(0, len(events) // 2, 1 + len(events) // 12):
        events.clear()
        with pytest.raises(ZeroDivisionError) if broken else nullcontext():
            assert model.ask([name]) is None
        assert events == ["asked", "passed"] * last + ["asked"]
        assert trace(model) == before


@each_probe
def test_a_number_that_is_not_finite_is_null(name: str) -> None:
    model = model_of(name)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.fill_(math.inf)
    answers = model.ask([name])
    assert answers is not None
    json.dumps(answers, allow_nan=False)


ASKED = [
    ["train.probes=[distance]", "attn=mla_vo"],
    ["train.probes=[distance]", "attn=shared_s1", "pe=nope"],
    ["train.probes=[drift]", "pe.trainable=log"],
    ["train.probes=[token_shift]", "model.token_shift=true", "pe=nope"],
    ["train.probes=[extension]", "attn=retention", "pe=vo_rope"],
    ["train.probes=[extension]", "pe.input=sinusoidal", "pe=k_rope"],
    ["train.probes=[distance,drift,extension]", "pe.trainable=true", "pe.bias=t5"],
]
REFUSED = [
    (["attn=linear"], "distance", "attn.kind=linear cannot be asked for distance"),
    (["attn=mla"], "floors", "attn.kind=latent cannot be asked for floors"),
    (["train.objective=mlm"], "repeat", "repeat needs train.objective=causal"),
    (["train.seq_len=3"], "repeat", "train.seq_len of at least 4"),
    (["data.document_mask=true"], "repeat", "repeat would read across documents"),
    (["train.seq_len=1"], "distance", "needs train.seq_len of at least 2"),
    (["model.window=8", "model.window_layers=[1,0]"], "distance", "no model.window_layers"),
    (["data.document_mask=true"], "distance", "distance would read across documents"),
    ([], "drift", "frequencies that are learned: pe.trainable"),
    ([], "token_shift", "needs mu, which is learned: model.token_shift"),
    ([], "answers", "answers are asked of generated data"),
    ([], "fit", "fit is asked of generated data"),
    (["pe=nope"], "extension", "needs at least one site in pe.rotate"),
    (["pe.input=learned"], "extension", "which pe.input=learned has not"),
    (["pe.fraction=0.04"], "extension", "two pairs of features that rotate"),
    (["train.seq_len=6"], "extension", "needs train.seq_len of at least 7"),
]


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_what_can_be_answered_can_be_asked(words: list[str]) -> None:
    composed(*words)


@pytest.mark.parametrize(("words", "probe", "said"), REFUSED, ids=str)
def test_what_cannot_be_answered_is_refused(words: list[str], probe: str, said: str) -> None:
    """The run may still ask for other probes."""
    asked = composed(*words, "train.probes=[windows]")
    with refused(f'train.probes=["windows", "{probe}"]', said):
        asked.replace("train", probes=("windows", probe))


@each_probe
def test_generated_data_is_asked_for_its_own_probe(name: str) -> None:
    for kind, own in (("copy", "answers"), ("spikes", "fit")):
        with (
            nullcontext()
            if name == own
            else refused(f'train.probes=["{name}"]', f"can be asked for {own} alone")
        ):
            composed(f"data={kind}").replace("train", probes=(name,))
