"""The configuration of RopeExpForCausalLM: LLaMA's, and where and how attention rotates.

This file and modeling_rope_exp.py are copied beside exported weights. They import torch and
transformers alone.
"""

from typing import Any

from transformers import LlamaConfig


class RopeExpConfig(LlamaConfig):
    """LlamaConfig with a rotation on any subset of the sites q, k, v, o."""

    model_type = "rope_exp"

    def __init__(
        self,
        rotate: list[str] | None = None,
        rope_base: float = 10000.0,
        rope_base_vo: float | None = None,
        rope_features: int | None = None,
        rope_features_vo: int | None = None,
        rope_start: int = 0,
        rope_learned: str | None = None,
        rope_scope: str = "model",
        position_input: str = "none",
        position_scale: float = 1.0,
        num_positions: int = 0,
        score_bias: str = "none",
        qk_norm: bool = False,
        window: int | None = None,
        is_causal: bool = True,
        **kwargs: Any,
    ) -> None:
        """Describe a decoder; the other arguments are LlamaConfig's.

        Args:
            rotate: the sites that rotate, by layer, such as ["qkvo", "qk"]; None: q and k in all.
            rope_base: the base of the frequencies; rope_base_vo: of v and o; None: the same.
            rope_features: the number of a head's features that rotate, the first ones; None: all.
                rope_features_vo: of v and o; None: as many.
            rope_start: the position of the first token.
            rope_learned: "raw" if frequencies are learned, "log" if their logarithms are.
            rope_scope: what has frequencies of its own: the model, a layer, or a key/value head.
            position_input: added to the embeddings: "none", "sinusoidal" or "learned" rows.
            position_scale: the amplitude of sines and cosines.
            num_positions: the number of learned rows.
            score_bias: added to the scores: "none", "alibi" or "t5".
            qk_norm: whether queries and keys are normalised by head before rotation.
            window: the number of latest keys that a query attends to; None: all.
            is_causal: whether no token attends to a later one.
        """
        super().__init__(**kwargs)
        self.rotate = list(rotate or ["qk"] * self.num_hidden_layers)
        self.rope_base = rope_base
        self.rope_base_vo = rope_base_vo or rope_base
        self.rope_features: int = rope_features or self.head_dim or 0
        self.rope_features_vo: int = rope_features_vo or self.rope_features
        self.rope_start = rope_start
        self.rope_learned = rope_learned
        self.rope_scope = rope_scope
        self.position_input = position_input
        self.position_scale = position_scale
        self.num_positions = num_positions
        self.score_bias = score_bias
        self.qk_norm = qk_norm
        self.window = window
        self.is_causal = is_causal
