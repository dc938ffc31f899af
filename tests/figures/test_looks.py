"""Tests of the looks of rows: each label has one, and variants differ even in grey."""

import re

import numpy as np
from support.configs import NINE

from rope_exp.figures.style import look, parts
from rope_exp.sections import SUBSETS

LABELS = {f"{''.join(sites)}_rope" if sites else "nope": sites for sites in SUBSETS}


def in_grey(label: str) -> str:
    """Return a look without its hue: the dash, the marker, and what of it is filled."""
    style = look(label)
    return str((style["dash"], style["outline"], style["filled"]))


def test_all_sixteen_subsets_look_different_in_grey() -> None:
    assert len({in_grey(label) for label in LABELS}) == 16
    assert len({in_grey(label) for label in NINE}) == 9


def test_hue_says_q_and_k_and_the_dash_says_v_and_o() -> None:
    """Each subset of Q and K has its own hue, and each of V and O its own dash and marker."""
    for keys, part in ((("color",), "qk"), (("dash", "outline"), "vo")):
        seen: dict[str, set[str]] = {}
        for label, sites in LABELS.items():
            of_part = "".join(site for site in sites if site in part)
            seen.setdefault(of_part, set()).add(str([look(label)[key] for key in keys]))
        assert all(len(looks) == 1 for looks in seen.values())
        assert len(set.union(*seen.values())) == 4


def test_the_hues_of_q_and_k_are_apart_in_grey() -> None:
    """Their relative luminances are at least a fifteenth of the scale apart."""
    hues = {look(label)["color"] for label in NINE}
    weights = np.array([0.2126, 0.7152, 0.0722])
    greys = sorted(
        float(weights @ np.frombuffer(bytes.fromhex(hue[1:]), np.uint8)) / 255 for hue in hues
    )
    assert len(greys) == 4
    assert min(np.diff(greys)) > 1 / 15


def test_parts_of_a_subset() -> None:
    assert parts("qkv_rope") == ("qk", "v")
    assert parts("nope") == ("", "")
    assert parts("qk_rope-base500000") is None


def test_a_label_has_one_look() -> None:
    assert look("qk_rope-base500000") == look("qk_rope-base500000") != look("qk_rope")
    assert str(look("qk_rope-base500000")) not in {str(look(label)) for label in LABELS}


def test_rows_of_another_factor_look_different() -> None:
    """Looks follow the row's place, since hashes could give two rows of a figure one colour."""
    looks = [look(f"optim.lr={number}", number) for number in range(9)]
    assert len({one["color"] for one in looks}) == 9
    assert len({one["outline"] for one in looks}) == 9


def test_the_filled_part_shows_q_and_k() -> None:
    """Q fills the left half of a marker, K the right one, both all of it, and none nothing."""
    for values in ("", "v", "o", "vo"):
        filled = {
            scores: look(f"{scores}{values}_rope" if scores + values else "nope")
            for scores in ("", "q", "k", "qk")
        }
        assert filled["qk"]["filled"] == filled["qk"]["outline"]
        assert filled[""]["filled"] == "M0,0Z"
        # From the top or bottom at x = 0 to a corner on one side.
        for scores, side in (("q", -1), ("k", 1)):
            ends = re.findall(r"[ML](-?[\d.]+),", filled[scores]["filled"].replace("A1,1", "L"))
            assert {np.sign(float(x)) for x in ends} <= {0, side}
            assert filled[scores]["filled"] != filled[scores]["outline"]
