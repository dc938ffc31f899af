"""Tests of which settings go with generated data, and of the errors for those that do not."""

import pytest
from support.refused import refused

from rope_exp.compose import run_config
from rope_exp.costs import attention_flops_per_token
from rope_exp.errors import ConfigError

SPIKES = ["data=spikes"]


MISTAKES = [
    (["data=addition", "tokenizer=bytes"], "tokenizer.kind=bytes", "leave out tokenizer=..."),
    (["tokenizer=task"], "tokenizer.kind=task", "such as data=addition"),
    (["data=addition", "train.seq_len=32"], "train.seq_len=32", "at least 33"),
    (["data=addition", "data.path=x"], "data.path=x", "no other has a path"),
    (["data=copy", "data.order=reversed"], "data.order=reversed", "data=addition alone"),
    (["data=addition", "data.period=0.1"], "data.period=0.1", "data=spikes alone"),
    (
        ["data=retrieval", "data.max_tokens=9"],
        "data.max_tokens=9",
        "stdlib or files or hub alone",
    ),
    ([*SPIKES, "train.objective=causal"], "train.objective=causal", "must be regression"),
    (["data=copy", "train.objective=regression"], "train.objective=regression", "must be causal"),
    (["train.objective=regression"], "train.objective=regression", "data=spikes alone"),
    ([*SPIKES, "attn=linear"], "train.objective=regression", "goes one way alone"),
    ([*SPIKES, "model.window=8"], "model.window=8", "looks both ways"),
    ([*SPIKES, "model.tie_word_embeddings=true"], "model.tie_word_embeddings=true", "no tokens"),
    ([*SPIKES, "pe=alibi"], "pe.bias=alibi", "positions of data=spikes are times"),
    ([*SPIKES, "pe=learned"], "pe.input=learned", "between whole ones"),
    ([*SPIKES, "data.period=0"], "data.period=0", "greater than 0"),
]


@pytest.mark.parametrize(("words", "shown", "allowed"), MISTAKES, ids=str)
def test_what_does_not_go_together_is_one_sentence(
    words: list[str], shown: str, allowed: str
) -> None:
    with refused(allowed, by=ConfigError) as sentence:
        run_config(words)
    assert sentence[0].startswith(shown)


def test_one_data_set_has_one_spelling() -> None:
    """Writing out the default period changes no hash; another order changes hash and name."""
    usual = run_config(SPIKES)
    assert run_config([*SPIKES, "data.period=1e-4"]).config_sha256 == usual.config_sha256
    assert usual.data.period_s == 1e-4
    assert run_config([*SPIKES, "data.period=0.01"]).config_sha256 != usual.config_sha256

    plain = run_config(["data=addition"])
    back = run_config(["data=addition", "data.order=reversed"])
    assert (plain.data.name, back.data.name) == ("addition", "addition-reversed")
    assert plain.group_sha256 != back.group_sha256


def test_looking_both_ways_costs_a_whole_row_of_keys() -> None:
    """A query takes 4 T K operations per head forward, and three times that with backward."""
    config = run_config(SPIKES)
    model = config.model
    found = attention_flops_per_token(config, 256)
    assert found == 3 * 4 * 256 * model.hidden_size * model.num_hidden_layers


def test_losses_have_the_unit_of_their_data() -> None:
    assert run_config([]).data.unit == "nats per token"
    assert run_config(["data=addition"]).data.unit == "nats per answer token"
    assert run_config(SPIKES).data.unit == "mean squared error"
