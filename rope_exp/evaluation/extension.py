"""A finished decoder at lengths that it was not trained at, with frequencies for them."""

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
        factors: the lengths in trained ones, from 1 on. There nothing is extended, so that all
            methods have the trained decoder's loss.
        loss: of windows of so many trained lengths.
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
    """Return what is extended, one after another: each pair that rotates, and then both."""
    rotating = tuple(pair for pair in PAIRS if {*pair} & {*pe.rotate})
    alone: list[tuple[str, ...]] = [(pair,) for pair in rotating]
    return [*alone, rotating] if len(rotating) > 1 else alone


@contextmanager
def extended(
    decoder: Decoder, method: str, pairs: Sequence[str], factor: float, trained_length: int
) -> Iterator[None]:
    """Turn by the frequencies that a method gives for a longer context, while the context lasts.

    Those that the decoder has are extended, learned ones too: each method goes by a pair's place,
    which learning does not change. YaRN's scale of the scores belongs to q and k: it is multiplied
    where these are extended.

    Args:
        method: one of `METHODS`.
        pairs: those to be extended, of qk and vo; another turns as ever.
        factor: how many times as long as in training.
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

    # It multiplies q and k both.
    scale = yarn_scale(factor) ** 2 if method == "yarn" and "qk" in pairs else 1.0
    with turning_by(decoder, {pair: theta(pair) for pair in pairs}), scores_times(decoder, scale):
        yield
