"""A variant looks the same in every figure, and unlike the others."""

from support.configs import NINE

from rope_exp.config.variants import SUBSETS
from rope_exp.report.looks import look


def test_all_sixteen_subsets_look_different() -> None:
    labels = [f"{''.join(sites)}_rope" if sites else "nope" for sites in SUBSETS]
    assert len({str(look(label)) for label in labels}) == 16


def test_the_nine_have_a_colour_each() -> None:
    assert len({look(label)["color"] for label in NINE}) == 9
    assert {look(label)["linestyle"] for label in NINE} == {"-"}


def test_a_label_has_one_look() -> None:
    assert look("qk_rope-base500000") == look("qk_rope-base500000") != look("qk_rope")


def test_rows_of_another_factor_look_different() -> None:
    """By their place: a hash could give two rates of one figure the same colour."""
    looks = [look(f"optim.lr={number}", number) for number in range(9)]
    assert len({one["color"] for one in looks}) == 9
    assert len({one["marker"] for one in looks}) == 9
