"""Tests of the plan for one kind of GPU, against numbers computed by hand."""

import re
from pathlib import Path

import pytest
from support.command import assert_refused, command
from support.configs import REPOSITORY
from support.refused import refused

from rope_exp.config.run import RunConfig
from rope_exp.plan.cards import CARDS, card_lines
from rope_exp.plan.compose import compose_jobs
from rope_exp.plan.costs import PEAK_TFLOPS

SEQUEL = ("model=sequel", "data=c4")
TOKENS = 16_000 * 256 * 4096
WEIGHTS = 931_317_760 - 80_000 * 2048 - 25 * 2048
FLOPS = TOKENS * (6 * WEIGHTS + 6 * 12 * 4097 * 2048)
# Float32 weights, gradient and moments; 34 bytes per feature, layer and token of eight rows in
# bf16; 10 bytes per logit of 8,192 tokens; the head's gradient.
BYTES = 16 * 931_317_760 + 8 * 4096 * 12 * 17 * 2 * 2048 + 8192 * 80_000 * 10 + 12 * 80_000 * 2048


def configs(*words: str) -> list[RunConfig]:
    return compose_jobs(list(words), multirun=True).configs


def test_hours_memory_and_cost_are_those_of_the_sheet() -> None:
    """An H100 has 989 TFLOP/s, of which runs reach 35 to 45 %; an hour costs 2.5."""
    about, _, run, total = card_lines(configs(*SEQUEL), "h100", 2.5)
    assert "35% to 45% MFU" in about
    low, high = (FLOPS / 989e12 / mfu / 3600 for mfu in (0.45, 0.35))
    assert (round(low, 1), round(high, 1)) == (54.5, 70.1)
    memory = f"{BYTES / 2**30:.1f} of {80e9 / 2**30:.1f}"
    expected = ["qk_rope sequel s0", "931,317,760", f"{TOKENS:,}", f"{FLOPS:.3e}", memory]
    ranges = ["54.5 to 70.1", f"{2.5 * low:.1f} to {2.5 * high:.1f}"]
    assert re.split(" {2,}", run.strip()) == [*expected, *ranges]
    assert re.split(" {2,}", total.strip())[-2:] == ranges


def test_a_sweep_is_the_sum_of_its_runs() -> None:
    lines = card_lines(configs(*SEQUEL, "pe=nope,vo_rope", "seed=0,1,2"), "h200")
    assert [line.split()[0] for line in lines[2:]] == ["nope"] * 3 + ["vo_rope"] * 3 + ["6"]
    cells = re.split(" {2,}", lines[-1].strip())
    low, high = (6 * FLOPS / 989e12 / mfu / 3600 for mfu in (0.45, 0.35))
    assert cells[2:] == [f"{6 * TOKENS:,}", f"{6 * FLOPS:.3e}", f"{low:.1f} to {high:.1f}"]
    assert "cost" not in lines[1]


def test_a_small_model_has_no_hours() -> None:
    lines = card_lines(configs("model=10m,125m"), "h100", 1.0)
    hours = [re.split(" {2,}", line.strip())[-2:] for line in lines[2:-1]]
    assert hours[0] == hours[2] == ["-", "-"]
    assert " to " in hours[1][0]
    assert lines[-1] == "-: no estimate below 100,000,000 parameters on a GPU"


def test_a_plan_for_gpus_needs_none_here() -> None:
    """The run will start on another machine, so this one's GPUs do not matter."""
    here = card_lines(configs(*SEQUEL), "b200")
    assert card_lines(configs(*SEQUEL, "launch=one_gpu_each"), "b200") == here
    with refused("train.precision=fp32", "bf16 only"):
        card_lines(configs(*SEQUEL, "train.precision=fp32"), "b200")


@pytest.mark.parametrize("name", CARDS)
def test_every_card_has_a_peak_a_range_and_its_sources(name: str) -> None:
    card = CARDS[name]
    assert card.peak in PEAK_TFLOPS
    assert 0 < card.low < card.high < 1
    references = (REPOSITORY / "docs" / "references.md").read_text(encoding="utf-8")
    short = re.match(r"\w+ \d{4}", card.source)
    assert short is None or f"**{short[0]}.**" in references


def test_the_command_prints_the_table_or_one_sentence(tmp_path: Path) -> None:
    done = command("-m", *SEQUEL, "seed=0,1", "--gpu", "h100", script="plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("estimates for h100")
    assert re.search("2 runs .* 109.1 to 140.3$", done.stdout.strip())

    unknown = command("--gpu", "v100", script="plan", cwd=tmp_path)
    assert_refused(unknown, "--gpu=v100: must be one of a100-40, a100-80, h100, h200")
    for words in (("--price", "2"), ("--gpu", "h100", "--price", "nan")):
        assert_refused(command(*words, script="plan", cwd=tmp_path), "--price=", "beside --gpu")
