"""The configuration of RopeExpForCausalLM: LLaMA's, and where and how attention rotates."""

from collections.abc import Sequence
from typing import Any

from transformers import LlamaConfig


class RopeExpConfig(LlamaConfig):
    """LlamaConfig with a rotation on any subset of the sites q, k, v, o.

    Attributes:
        rotate: the sites that rotate, by layer, such as ["qkvo", "qk"].
        rotations: of q and k, and of v and o: `sites`, the `base` of the frequencies, the number
            of a head's `features` that rotate, the first ones, and the name of `learned`
            frequencies or null.
        rope_start: the position of the first token.
        rope_learned: true if frequencies are learned, "log" if their logarithms are.
        rope_shape: the layers, and the key/value heads, that have frequencies of their own.
        sinusoid_scale: the amplitude of sines and cosines in the input.
        num_positions: one more than the last position of training.
        qk_norm: whether queries and keys are normalised by head before rotation.
        window: the number of latest keys that a query attends to; None: all.
        is_causal: whether no token attends to a later one.
    """

    model_type = "rope_exp"

    rotate: Sequence[str] = ()
    rotations: Sequence[dict[str, Any]] = ()
    rope_start: int = 0
    rope_learned: bool | str = False
    rope_shape: Sequence[int] = ()
    sinusoid_scale: float = 1.0
    num_positions: int = 0
    qk_norm: bool = False
    window: int | None = None
    is_causal: bool = True
