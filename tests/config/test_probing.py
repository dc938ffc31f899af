"""Tests of which runs support which probes, and of the errors for the others."""

import pytest
from support.refused import refused

from rope_exp.compose import run_config

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
    (["train.seq_len=1"], "distance", "needs train.seq_len of at least 2"),
    ([], "drift", "frequencies that are learned: pe.trainable"),
    ([], "token_shift", "needs mu, which is learned: model.token_shift"),
    (["pe=nope"], "extension", "needs at least one site in pe.rotate"),
    (["pe.input=learned"], "extension", "which pe.input=learned has not"),
    (["pe.fraction=0.04"], "extension", "two pairs of features that rotate"),
    (["train.seq_len=6"], "extension", "needs train.seq_len of at least 7"),
]


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_what_can_be_answered_can_be_asked(words: list[str]) -> None:
    run_config(words)


@pytest.mark.parametrize(("words", "probe", "said"), REFUSED, ids=str)
def test_what_cannot_be_answered_is_refused(words: list[str], probe: str, said: str) -> None:
    """The run may still ask for other probes."""
    with refused(f'train.probes=["windows", "{probe}"]', said):
        run_config([*words, f"train.probes=[windows,{probe}]"])
    run_config([*words, "train.probes=[windows]"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pe.layers=[0,0,0,0,1]"], "pe.layers=[0, 0, 0, 0, 1]: reaches none of the 4 layers"),
        (["pe=qkvo_rope", "pe.layers_vo=[0,1]", "model.num_hidden_layers=1"], "pe.layers_vo="),
    ],
)
def test_a_pattern_that_reaches_no_layer_is_refused(words: list[str], said: str) -> None:
    with refused(said):
        run_config(words)
