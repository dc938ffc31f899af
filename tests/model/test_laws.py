"""The certificate: each subset is measured to obey its law, and broken rotations are refused."""

import pytest
from support.models import SIZES, SUBSETS, make_pe
from torch import Tensor

from rope_exp.model.laws import certificate, expected_class
from rope_exp.model.rope import rotate
from rope_exp.system.errors import LawError


@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
@pytest.mark.parametrize(("fraction", "start"), [(1.0, 0), (0.5, 3)])
def test_each_subset_belongs_to_its_class(
    sites: tuple[str, ...], fraction: float, start: int
) -> None:
    checked = certificate(SIZES, make_pe(*sites, fraction=fraction, start=start))
    assert checked["measured"] == expected_class(sites)


def forward_only(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """The mistake of an output that turns the wrong way."""
    return rotate(x, cos, sin)


def negated(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """The mistake of an inverse that negates the cosine as well, which is no rotation."""
    return rotate(x, -cos, -sin) if inverse else rotate(x, cos, sin)


def not_at_all(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """The mistake of an output that is not turned back."""
    return x if inverse else rotate(x, cos, sin)


def twice(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """The mistake of values that turn once more where heads are repeated."""
    turned = rotate(x, cos, sin, inverse=inverse)
    return turned if inverse else rotate(turned, cos, sin)


@pytest.mark.parametrize("mistake", [forward_only, negated, not_at_all, twice])
def test_a_rotation_that_others_got_wrong_is_refused(
    mistake: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rope_exp.model.attention.base.rotate", mistake)
    with pytest.raises(LawError, match="refusing to train"):
        certificate(SIZES, make_pe("v", "o"))


def test_the_certificate_holds_at_far_positions() -> None:
    checked = certificate(SIZES, make_pe("v", "o", base=1e6, start=2**20))
    assert checked["measured"] == "invariant"
    assert checked["max_deviation"]["turned by R_c"] > 1e-3
