"""Test of curves by tokens, for stages with different numbers of tokens per step."""

from dataclasses import replace

from support.pages import make_runs

from rope_exp.report.by_tokens import by_tokens


def test_each_row_stands_at_its_tokens() -> None:
    """Steps have 4,096 tokens in the first stage and 8,192 in the second."""
    [run] = make_runs("staged", ("qk_rope",), (0,))
    staged = run.config.replace("train", stages=[[256, 400], [512, 100, 16]])
    curve = by_tokens([replace(run, config=staged)], "val/loss")[0]
    steps = [row["step"] for row in run.metrics if "val/loss" in row]
    expected = [4096 * min(step, 400) + 8192 * max(step - 400, 0) for step in steps]
    assert len(steps) == 10
    assert curve.index.tolist() == expected
    assert curve.tolist() == [row["val/loss"] for row in run.metrics if "val/loss" in row]
