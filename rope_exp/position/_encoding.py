"""The class from which a position encoding derives: a user's own, or one of ours without rotation.

It acts in each layer (on q, k, v, scores and output) or at the input, or both, by the methods that
it overrides. See docs/extending.md. This file is copied beside exported weights.

Shapes: B batch, T position, E keys (the last T are the queries' own), H query heads, K features.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from torch import Tensor, nn


class Sizes(NamedTuple):
    """The sizes of a decoder, and the layer of one instance; None: the instance at the input."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    num_positions: int
    causal: bool
    layer: int | None


class Position(nn.Module):
    """A position encoding. Override what it does; what is not overridden does nothing.

    Matrices are drawn from N(0, 0.02^2) by their names; other parameters keep the values that
    `__init__` gives them, which must not be random. A model may be built on torch's meta device,
    where tensors have no values.

    Attributes:
        relative: whether the logits stay the same when all positions grow by the same number. It
            is measured before training. None: no law is stated, and none is measured.
        limit: one more than the last position that it has; None: it has every position.
    """

    relative: bool | None = True
    limit: int | None = None

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Do to each tensor what `fn` does, but make nothing narrower than float32."""

        def applied(x: Tensor) -> Tensor:
            made = fn(x)
            is_narrower = made.is_floating_point() and made.itemsize < min(x.itemsize, 4)
            return x.to(made.device) if is_narrower else made

        # Not super(): the rotation of an exported model borrows this method.
        return nn.Module._apply(self, applied, recurse)

    def embed(self, x_BTD: Tensor, position_T: Tensor) -> Tensor:
        """Return the token embeddings with something added; positions are [T] or [B, T]."""
        return x_BTD

    def turn(self, site: str, x_BTHK: Tensor, position_T: Tensor) -> Tensor:
        """Return x changed by its positions.

        Args:
            site: "q", "k" or "v", before the scores; or "o", after the sum over values.
            x_BTHK: the heads of that site; k and v have key/value heads.
            position_T: the positions of x's tokens; or [B, T].
        Returns:
            A tensor of x's shape; q and k may both become wider. It is cast to x's dtype.
        """
        return x_BTHK

    def turned(self, site: str, x_BTHK: Tensor, position_T: Tensor) -> Tensor:
        """Return what `turn` returns, in x's dtype.

        Args:
            site: as of `turn`.
            x_BTHK: as of `turn`.
            position_T: as of `turn`.
        Returns:
            The tensor, of x's dtype.
        Raises:
            ValueError: it is no tensor, or has another shape than `turn` allows.
        """
        y_BTHK = self.turn(site, x_BTHK, position_T)
        if not isinstance(y_BTHK, Tensor):
            raise ValueError(f"turn({site!r}) returned {type(y_BTHK).__name__}, not a tensor")
        # Wider queries need wider keys: their product says so.
        may_widen = site in "qk" and y_BTHK.ndim == x_BTHK.ndim
        kept = y_BTHK.shape[:-1] if may_widen else y_BTHK.shape
        if kept != x_BTHK.shape[: len(kept)]:
            shapes = f"the shape {tuple(y_BTHK.shape)}, not {tuple(x_BTHK.shape)}"
            where = f"positions have the shape {tuple(position_T.shape)}"
            raise ValueError(f"turn({site!r}) returned {shapes}; {where}")
        return y_BTHK.to(x_BTHK.dtype)

    def of_tokens(self, x_BTD: Tensor, position_T: Tensor) -> dict[str, Tensor]:
        """Return what `scores` needs of each token, [B, T, ...] by name; it is cached."""
        return {}

    def scores(self, kept: Mapping[str, Tensor], num_queries: int) -> Tensor | None:
        """Return what is added to the scores, [H, T, E] or [B, H, T, E]; None: nothing.

        `kept` is what `of_tokens` returned for all E tokens, and `position_BE`.
        """
        return None

    def rows_to_cache(
        self, x_BTD: Tensor, position_T: Tensor, others: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the rows that `scores` needs of each token: `of_tokens`, and their positions.

        Args:
            x_BTD: the normalised input of the layer.
            position_T: the positions of x's tokens; or [B, T].
            others: the rows that the layer caches besides, whose names are taken.
        Returns:
            Rows [B, T, ...] by name; none, if the class does not override `scores`.
        Raises:
            ValueError: `of_tokens` uses a name that is taken.
        """
        if not self.overrides("scores"):
            return {}
        rows = self.of_tokens(x_BTD, position_T)
        taken = rows.keys() & {*others, "position_BE"}
        if taken:
            raise ValueError(f"of_tokens: the name {taken.pop()} is taken")
        return {**rows, "position_BE": position_T.expand(len(x_BTD), -1)}

    def with_scores(
        self, bias_HTE: Tensor | None, rows: Mapping[str, Tensor], q_BTHK: Tensor
    ) -> Tensor | None:
        """Return a layer's bias with the scores of this class added.

        Args:
            bias_HTE: the bias so far, over all keys; None: there is none.
            rows: the rows of all E keys that are kept, with "k" and those of `rows_to_cache`.
            q_BTHK: the queries.
        Returns:
            The bias over the kept keys; None: nothing is added to the scores.
        Raises:
            ValueError: `scores` returned another shape than [H, T, E] or [B, H, T, E].
        """
        num_queries, num_heads = q_BTHK.shape[1:3]
        scores_HTE = self.scores(rows, num_queries)
        if scores_HTE is None:
            return bias_HTE

        shape = (num_heads, num_queries, rows["k"].shape[1])
        if scores_HTE.shape[-3:] != shape:
            raise ValueError(f"scores returned the shape {tuple(scores_HTE.shape)}, not {shape}")
        if bias_HTE is None:
            return scores_HTE
        # A window may have dropped the first keys.
        return bias_HTE[..., -shape[2] :] + scores_HTE

    @classmethod
    def overrides(cls, *methods: str) -> bool:
        """Return whether the class overrides any of these methods."""
        return any(getattr(cls, name) is not getattr(Position, name) for name in methods)

    @classmethod
    def placed(cls, sizes: Sizes) -> Self | None:
        """Return the instance of a layer, or of the input; None if it does nothing there."""
        acts = ("embed",) if sizes.layer is None else ("turn", "of_tokens", "scores")
        return cls(sizes) if cls.overrides(*acts) else None


class ScoreBias(Position):
    """An encoding of offsets alone: the instance at the input adds its scores in every layer."""

    def of_offsets(self, offset_TE: Tensor) -> Tensor:
        """Return what is added to the scores, [H, T, E], by j - i of query i and key j."""
        raise NotImplementedError

    def scores(self, kept: Mapping[str, Tensor], num_queries: int) -> Tensor:
        # All rows have the same positions.
        key_E = kept["position_BE"][0]
        return self.of_offsets(key_E - key_E[-num_queries:, None])
