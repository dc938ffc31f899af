"""Tests of the looks of rows: each label has one, and variants differ even in grey."""

import numpy as np
from matplotlib.colors import to_rgb
from support.configs import NINE

from rope_exp.config.variants import SUBSETS
from rope_exp.report.looks import look, parts
from rope_exp.report.page_marks import shapes

LABELS = {f"{''.join(sites)}_rope" if sites else "nope": sites for sites in SUBSETS}


def in_grey(label: str) -> str:
    """Return a look without its hue: the dash, the marker, and which side is filled."""
    style = look(label)
    hollow = style["markerfacecolor"] == "white"
    return str((style["linestyle"], style["marker"], style["fillstyle"], hollow))


def test_all_sixteen_subsets_look_different_in_grey() -> None:
    assert len({in_grey(label) for label in LABELS}) == 16
    assert len({in_grey(label) for label in NINE}) == 9


def test_hue_says_q_and_k_and_the_dash_says_v_and_o() -> None:
    """Each subset of Q and K has its own hue and fill, and each of V and O its own dash."""
    for keys, part in ((("color", "fillstyle", "markerfacecolor"), "qk"), (("linestyle",), "vo")):
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
    greys = sorted(float(weights @ to_rgb(hue)) for hue in hues)
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
    assert len({one["marker"] for one in looks}) == 9


def test_a_look_is_also_paths_and_dashes() -> None:
    """Half-filled markers fill half of their path and hollow ones nothing; dashes are pixels."""
    for label in ("qk_rope", "vo_rope", "nope", "q_rope", "k_rope", "kv_rope", "own"):
        style = look(label)
        found = shapes(style)
        assert found["outline"].endswith("Z")
        is_half = style["fillstyle"] != "full"
        assert (found["filled"] not in (found["outline"], "M0,0Z")) == is_half
    assert shapes(look("nope"))["filled"] == "M0,0Z"
    assert shapes(look("qk_rope"))["dash"] == [1, 0]
    assert shapes(look("own"))["dash"] == [12.0, 2.4, 2.4, 2.4, 2.4, 2.4]
