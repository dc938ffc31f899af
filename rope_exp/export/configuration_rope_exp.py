"""The configuration of RopeExpForCausalLM: LLaMA's, and where and how attention rotates."""

from collections.abc import Sequence
from typing import Any

from transformers import LlamaConfig


class RopeExpConfig(LlamaConfig):
    """LlamaConfig with a rotation on any subset of the sites q, k, v, o."""

    model_type = "rope_exp"

    # The sites that rotate, by layer, such as ["qkvo", "qk"].
    rotate: Sequence[str] = ()
    # Of q and k, and of v and o: `sites`, the `base` of the frequencies, the number of a head's
    # first `features` that rotate, and the name of `learned` frequencies or null.
    rotations: Sequence[dict[str, Any]] = ()
    rope_start: int = 0  # the position of the first token
    rope_learned: bool | str = False  # "log": their logarithms
    rope_shape: Sequence[int] = ()  # layers and key/value heads with frequencies of their own
    sinusoid_scale: float = 1.0
    num_positions: int = 0  # one more than the last position of training
    qk_norm: bool = False
    window: int | None = None  # the latest keys that a query attends to
    is_causal: bool = True
