"""Tests of the looks of rows: each label has one, and variants differ even in grey."""

from rope_exp.figures.style import look
from rope_exp.sections import SUBSETS

LABELS = {f"{''.join(sites)}_rope" if sites else "nope": sites for sites in SUBSETS}


def in_grey(label: str) -> str:
    """Return a look without its hue: the dash, the marker, and what of it is filled."""
    style = look(label)
    return str((style["dash"], style["outline"], style["filled"]))


def test_all_sixteen_subsets_look_different_in_grey() -> None:
    assert len({in_grey(label) for label in LABELS}) == 16


def test_hue_says_q_and_k_and_the_dash_says_v_and_o() -> None:
    """Each subset of Q and K has its own hue, and each of V and O its own dash and marker."""
    for keys, part in ((("color",), "qk"), (("dash", "outline"), "vo")):
        seen: dict[str, set[str]] = {}
        for label, sites in LABELS.items():
            of_part = "".join(site for site in sites if site in part)
            seen.setdefault(of_part, set()).add(str([look(label)[key] for key in keys]))
        assert all(len(looks) == 1 for looks in seen.values())
        assert len(set.union(*seen.values())) == 4


def test_rows_of_another_factor_look_different() -> None:
    """Looks follow the row's place, since hashes could give two rows of a figure one colour."""
    looks = [look(f"optim.lr={number}", number) for number in range(9)]
    assert len({one["color"] for one in looks}) == 9
    assert len({one["outline"] for one in looks}) == 9
