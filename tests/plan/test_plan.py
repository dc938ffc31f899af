"""Tests of the costs that are printed before a run, and of matched parameters."""

import re
from pathlib import Path

import pytest
from support.command import assert_refused, command
from support.refused import refused

from rope_exp.compose import compose_jobs, resolve, run_config
from rope_exp.config import RunConfig
from rope_exp.plan import tables as plan
from rope_exp.plan.costs import num_parameters, operations


def test_parameters_operations_memory_and_time_are_printed(tmp_path: Path) -> None:
    done = command("model=sequel", "data=c4", script="plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "931,317,760 parameters" in done.stdout

    # 6 operations a weight and token over all but the embedding, and 6 L (T + 1) D in attention.
    weights = 931_317_760 - 80_000 * 2048 - 25 * 2048
    per_token = 6 * weights + 6 * 12 * 4097 * 2048
    assert f"{per_token:.3e} a token" in done.stdout
    assert re.search(r"about [\d.]+ GiB a process", done.stdout)
    times = re.findall(r"^time +\d+ days, [\d:]+ on one", done.stdout, re.MULTILINE)
    assert len(times) >= 3


def test_a_sweep_costs_what_its_runs_cost_together() -> None:
    words = ["launch.device=cpu", "model=nano,sequel_mini", "train.num_steps=60,120"]
    configs = [resolve(config) for config in compose_jobs(words, multirun=True).configs]
    single = sum(operations(config) for config in configs)

    [said] = plan.sweep_lines(configs)
    assert f"4 runs, of which the above is the first: {360 * 16 * 256:,} tokens" in said
    assert f"{single:.3e} operations" in said


def test_an_unknown_vocabulary_is_one_sentence() -> None:
    config = resolve(run_config(["tokenizer=pretrained", "tokenizer.path=owner/words"]))
    with refused("tokenizer=pretrained: its vocabulary is known once"):
        plan.cost_lines(config)


def test_the_command_plans_a_sweep(tmp_path: Path) -> None:
    done = command("-m", "pe=nope,vo_rope", script="plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = command("pe=nope,vo_rope", script="plan", cwd=tmp_path)
    assert_refused(done, "pe: several values make a sweep, which needs -m")


@pytest.mark.parametrize("words", [["attn=mla"], ["attn=shared_s2", "pe=qkvo_rope"], []])
def test_matched_parameters_are_met_before_anything_is_hashed(words: list[str]) -> None:
    wanted = 1_500_000
    config = run_config([*words, f"model.match_params={wanted}"])
    assert abs(num_parameters(config.architecture(2048)) - wanted) <= 0.001 * wanted

    width = config.model.intermediate_size
    spelled = run_config([*words, f"model.intermediate_size={width}"])
    assert config.config_sha256 == spelled.config_sha256
    assert RunConfig.from_dict(config.to_dict()) == config
