"""Loss of a finished decoder at lengths beyond its training, with frequencies adapted to them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from rope_exp.config.variants import PAIRS, PeConfig
from rope_exp.evaluation.contexts import scores_times, turning_by
from rope_exp.evaluation.values import Probes, rounded
from rope_exp.model.decoder import Decoder
from rope_exp.model.extension import interpolated, ntk_aware, yarn, yarn_scale

METHODS = ("interpolation", "ntk_aware", "yarn")


def by_length(
    decoder: Decoder, trained_length: int, factors: Sequence[int], loss: Callable[[int], Tensor]
) -> Probes:
    """Return the loss at several lengths, as trained and by each method.

    Args:
        factors: the lengths as multiples of the trained length, starting at 1. At 1 nothing is
            extended, so all methods have the trained decoder's loss.
        loss: returns the loss of windows of `factor` trained lengths.
    """
    as_trained = [loss(factor) for factor in factors]
    answer: Probes = {
        "lengths": [factor * trained_length for factor in factors],
        "as_trained": rounded(as_trained),
    }
    for method in METHODS:
        answer[method] = {}
        for pairs in chosen_pairs(decoder.architecture.pe):
            losses = as_trained[:1]
            for factor in factors[1:]:
                with extended(decoder, method, pairs, factor, trained_length):
                    losses.append(loss(factor))
            answer[method]["".join(pairs)] = rounded(losses)
    return answer


def chosen_pairs(pe: PeConfig) -> list[tuple[str, ...]]:
    """Return the sets of pairs to extend in turn: each pair that rotates, then both."""
    rotating = tuple(pair for pair in PAIRS if {*pair} & {*pe.rotate})
    alone: list[tuple[str, ...]] = [(pair,) for pair in rotating]
    return [*alone, rotating] if len(rotating) > 1 else alone


@contextmanager
def extended(
    decoder: Decoder, method: str, pairs: Sequence[str], factor: float, trained_length: int
) -> Iterator[None]:
    """Rotate by a method's frequencies for longer sequences while the context lasts.

    The decoder's own frequencies are extended, including learned ones: each method depends on a
    feature pair's index, which learning does not change. YaRN's scale of the scores belongs to q
    and k, so it applies only if these are extended.

    Args:
        method: one of `METHODS`.
        pairs: the pairs of sites to extend, of qk and vo; the others keep their frequencies.
        factor: the length as a multiple of the trained length.
        trained_length: in positions.
    """
    rotary = decoder.model.rotary_emb
    base_of = decoder.architecture.pe.base_of

    def theta(pair: str) -> Tensor:
        trained = rotary.theta(pair)
        if method == "interpolation":
            return interpolated(trained, factor)
        if method == "ntk_aware":
            return ntk_aware(trained, factor)
        assert method == "yarn"
        return yarn(trained, factor, trained_length, base_of(pair))

    # Squared, because the scale multiplies both q and k.
    scale = yarn_scale(factor) ** 2 if method == "yarn" and "qk" in pairs else 1.0
    with turning_by(decoder, {pair: theta(pair) for pair in pairs}), scores_times(decoder, scale):
        yield
