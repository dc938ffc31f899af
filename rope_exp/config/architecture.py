"""All that decides what a decoder is. No torch."""

from dataclasses import dataclass

from rope_exp.config.kinds import SOFTMAX, AttnConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig


@dataclass(frozen=True)
class Architecture:
    """All that decides what a decoder's parameters are and what it computes."""

    model: ModelConfig
    pe: PeConfig
    vocab_size: int
    attn: AttnConfig = SOFTMAX
    # Whether a token meets no later one.
    causal: bool = True
    # How many positions can be learned, where they are.
    num_positions: int = 0
    # How many real numbers are predicted at a place; None: a token, by the vocabulary's logits.
    num_outputs: int | None = None

    @property
    def head_size(self) -> int:
        """The features of the head."""
        return self.vocab_size if self.num_outputs is None else self.num_outputs
