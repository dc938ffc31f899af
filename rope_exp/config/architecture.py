"""The specification of a decoder: its parameters and computation. Does not import torch."""

from dataclasses import dataclass

from rope_exp.config.kinds import SOFTMAX, AttnConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig


@dataclass(frozen=True)
class Architecture:
    """Specification of a decoder: everything that determines its parameters and computation."""

    model: ModelConfig
    pe: PeConfig
    vocab_size: int
    attn: AttnConfig = SOFTMAX
    # True if no token attends to a later one.
    causal: bool = True
    # Rows of the table of learned positions, if there is one.
    num_positions: int = 0
    # Real numbers predicted at a place; None: a token, by logits over the vocabulary.
    num_outputs: int | None = None

    @property
    def head_size(self) -> int:
        """Output features of the head."""
        return self.vocab_size if self.num_outputs is None else self.num_outputs
