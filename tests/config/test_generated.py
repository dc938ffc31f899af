"""Tests of which settings go with generated data, and of the errors for those that do not."""

from rope_exp.compose import run_config
from rope_exp.costs import attention_flops_per_token

SPIKES = ["data=spikes"]


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
