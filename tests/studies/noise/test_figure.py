"""The figure of the pilot's deviations."""

from support.figures import line, texts

from rope_exp.studies.noise.figure import deviations
from rope_exp.studies.noise.measures import Spread


def test_deviations_stand_side_by_side() -> None:
    pairs = {("qk", "vo"): 0.004, ("qk", "no"): 0.02}
    unpaired = {("qk", "vo"): 0.016, ("qk", "no"): 0.0}  # of which a logarithm is none
    figure = deviations([Spread("order", 5, {}, pairs, unpaired)], {"qk": "QK-RoPE"})
    assert figure is not None
    assert line(figure, "qk vo paired")[0] == [0.004]
    assert line(figure, "qk vo unpaired")[0] == [0.016]
    said = texts(figure)
    assert {"vo − QK-RoPE", "what varies: order (5 values)"} <= set(said)


def test_a_spread_without_pairs_leaves_the_others() -> None:
    """An incomplete pilot: one row alone has no pair, and no ratio."""
    alone = Spread("order", 2, {"qk": 0.01}, {}, {})
    paired = Spread("both", 2, {}, {("qk", "vo"): 0.004}, {("qk", "vo"): 0.016})
    figure = deviations([alone, paired])
    assert figure is not None
    assert "what varies: both (2 values)" in texts(figure)
    assert "paired / unpaired 0.25" in texts(figure)
    assert not any("order" in said for said in texts(figure))
    assert deviations([alone]) is None
