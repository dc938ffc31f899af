"""A LLaMA whose attention rotates any subset of queries, keys, values and outputs.

    q_i = R_i W_q x_i,  k_j = R_j W_k x_j,  v_j = R_j W_v x_j,  o_i = R_i^T sum_j a_ij v_j

R_m rotates the feature pair (f, f + F) of a head by m * theta_f (Su 2025, eq. 5). The cache holds
rotated keys and values. This file is copied beside exported weights, with its imports of rope_exp.

Shapes: B batch, T query, E key, L layers, H query heads, G key/value heads, K features,
F frequencies. A table has an axis of 1 where layers or heads share it.
"""

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaForCausalLM,
    LlamaModel,
    LlamaPreTrainedModel,
    eager_attention_forward,
)

from rope_exp.position._encoding import Position, Sizes
from rope_exp.rope import angles, frequencies, rotate

# The name of the argument, which changes from version 5.24 on.
HAS_CACHE = "cache" in inspect.signature(LlamaAttention.forward).parameters
CACHE = "cache" if HAS_CACHE else "past_key_values"

Tables = tuple[Tensor, Tensor]  # cos and sin of a pair of sites, [B, T, L, G, F] each

# Makers of the encodings besides rotation, by the names of their modules. A copy beside weights has
# those of its model.
MAKERS: dict[str, Callable[[Any, Sizes], Position | None]] = {}


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


# The module's name of a user's class, as in the names of its stored parameters.
CUSTOM = "own"


def encodings(config: RopeExpConfig, layer: int | None) -> dict[str, Position]:
    """Return new encodings that act in a layer, or on the input (None), by their modules' names."""
    values = [getattr(config, key) for key in Sizes._fields[:-2]]
    sizes = Sizes._make([*values, config.is_causal, layer])
    acting = {}
    for name, make in MAKERS.items():
        # In layers, a user's class alone acts.
        if layer is not None and name != CUSTOM:
            continue
        encoding = make(config, sizes)
        if encoding is None:
            continue
        if name == CUSTOM:
            # A model may be made in bfloat16, which holds no odd position past 256.
            encoding = encoding.float()
        acting[name] = encoding
    return acting


class Rotary(nn.Module):
    """The rotation tables of every layer; frequencies are computed, or parameters."""

    # Nothing is narrower than float32.
    _apply = Position._apply

    def __init__(self, config: RopeExpConfig) -> None:
        super().__init__()
        self.config = config
        for rotation in config.rotations:
            if rotation["learned"]:
                begin_F = frequencies(rotation["features"], rotation["base"])
                if config.rope_learned == "log":
                    begin_F = begin_F * 0
                begin = begin_F.repeat(*config.rope_shape, 1)
                self.register_parameter(rotation["learned"], nn.Parameter(begin))

    def forward(self, hidden_states: Tensor, position_ids: Tensor) -> dict[str, Tables]:
        """Return the tables of each site, by its letter."""
        tables: dict[str, Tables] = {}
        for rotation in self.config.rotations:
            # Computed anew: a buffer that is not saved would hold nothing after loading.
            theta = frequencies(rotation["features"], rotation["base"]).to(position_ids.device)
            if rotation["learned"]:
                learned = self.get_parameter(rotation["learned"])
                if self.config.rope_learned == "log":
                    theta = theta * learned.exp()
                else:
                    theta = learned.abs()
            while theta.ndim < 3:
                theta = theta.unsqueeze(-2)
            angle_BTLGF = angles(theta, position_ids)
            tables |= dict.fromkeys(rotation["sites"], (angle_BTLGF.cos(), angle_BTLGF.sin()))
        return tables


class RopeExpAttention(LlamaAttention):
    """LlamaAttention with a rotation on the layer's sites, a norm and terms of scores."""

    def __init__(self, config: RopeExpConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.is_causal = config.is_causal
        # Its parameters' names, by which weights are loaded, contain this name.
        self.own: Any = encodings(config, layer_idx).get(CUSTOM)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: dict[str, Tables],
        attention_mask: Tensor | None = None,
        score_bias: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        position_BT: Tensor = kwargs["position_ids"]
        q_BHTK, k_BGTK, v_BGTK = self.heads(hidden_states, position_embeddings, position_BT)

        # What a user's class needs of each token is cached in further features of its key.
        rows: dict[str, Tensor] = {}
        if self.own is not None:
            rows = self.own.rows_to_cache(at_least_float32(hidden_states), position_BT, {})
        features = k_BGTK.shape[-1]
        k_BGTK = packed(k_BGTK, rows)

        num_before = 0
        cache = kwargs.pop(CACHE, None)
        if cache is not None:
            # A static cache counts in a tensor, which `update` changes.
            num_before = cache.get_seq_length(self.layer_idx) + 0
            # Older versions are told where the new keys are.
            places = {"cache_position": kwargs.get("cache_position")}
            # A cache has one dtype, which rows may have made float32.
            v_BGTK = v_BGTK.to(k_BGTK.dtype)
            k_BGTK, v_BGTK = cache.update(k_BGTK, v_BGTK, self.layer_idx, places)
        k_BGEK, rows = unpacked(k_BGTK, features, rows)
        k_BGEK = k_BGEK.to(q_BHTK.dtype)
        v_BGEK = v_BGTK.to(q_BHTK.dtype)

        # A static cache has room for more keys.
        query_T1 = torch.arange(q_BHTK.shape[2], device=q_BHTK.device)[:, None] + num_before
        offset_TE = torch.arange(k_BGEK.shape[2], device=q_BHTK.device) - query_T1
        terms = self.score_terms(score_bias, rows, offset_TE, num_before)

        kernel = self.config._attn_implementation
        if rows or terms or self.config.window is not None or not self.is_causal:
            if kernel not in ("eager", "sdpa"):
                raise ValueError(
                    f"attn_implementation={kernel!r} takes no bias, window or bidirectional mask: "
                    "use 'sdpa' or 'eager'"
                )
            attention_mask = added(terms, attention_mask, offset_TE, self.config.window, q_BHTK)

        attend = eager_attention_forward
        if kernel != "eager":
            attend = ALL_ATTENTION_FUNCTIONS[kernel]
        # A user's class may make queries and keys wider.
        scaling = q_BHTK.shape[-1] ** -0.5
        o_BTHK, weights = attend(
            self, q_BHTK, k_BGEK, v_BGEK, attention_mask, scaling=scaling, **kwargs
        )
        o_BTHK = self.rotate("o", o_BTHK, position_embeddings, position_BT)
        return self.o_proj(o_BTHK.flatten(2)), weights

    def score_terms(
        self, score_bias: Any, rows: dict[str, Tensor], offset_TE: Tensor, num_before: Any
    ) -> list[Tensor]:
        """Return what is added to the scores, [H, T, E] or [B, H, T, E] each.

        Args:
            score_bias: the encoding of offsets that all layers share; None: there is none.
            rows: the cached rows of a user's class; empty: it adds nothing.
            offset_TE: j - i of query i and key j, of all keys for which the cache has room.
            num_before: the number of tokens before the queries, an int or a tensor.
        """
        terms = []
        if score_bias is not None:
            terms.append(score_bias.of_offsets(offset_TE))
        if rows:
            num_queries, num_places = offset_TE.shape
            num_keys = int(num_before) + num_queries
            kept = {name: x_BE[:, :num_keys] for name, x_BE in rows.items()}
            scores = self.own.scores(kept, num_queries)
            if scores is not None:
                terms.append(nn.functional.pad(scores, (0, num_places - num_keys)))
        return terms

    def heads(
        self, x_BTD: Tensor, tables: dict[str, Tables], position_BT: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, T, K], keys and values [B, G, T, K], normalized and rotated."""
        shape = (*x_BTD.shape[:-1], -1, self.head_dim)
        heads = []
        for site in "qkv":
            x_BTHK = getattr(self, f"{site}_proj")(x_BTD).view(shape)
            if self.config.qk_norm and site != "v":
                x_BTHK = getattr(self, f"{site}_norm")(x_BTHK.float()).to(x_BTHK.dtype)
            x_BTHK = self.rotate(site, x_BTHK, tables, position_BT)
            heads.append(x_BTHK.transpose(1, 2))
        q_BHTK, k_BGTK, v_BGTK = heads
        return q_BHTK, k_BGTK, v_BGTK

    def rotate(
        self, site: str, x_BTHK: Tensor, tables: dict[str, Tables], position_BT: Tensor
    ) -> Tensor:
        """Return x rotated by its position, or back for o, by all that acts on this site."""
        # A user's class acts before the rotation, and on outputs after it.
        custom = self.own
        if custom is not None and site != "o":
            x_BTHK = custom.turn(site, at_least_float32(x_BTHK), position_BT).to(x_BTHK.dtype)
        if site in self.config.rotate[self.layer_idx]:
            layer = self.layer_idx % tables[site][0].shape[2]
            cos_BTGF, sin_BTGF = (table[:, :, layer] for table in tables[site])
            # It may have put more features first.
            first, x_BTHK = x_BTHK.tensor_split([x_BTHK.shape[-1] - self.head_dim], dim=-1)
            # Each key/value head's frequencies serve its query heads.
            x_BTGHK = x_BTHK.unflatten(2, (cos_BTGF.shape[2], -1))
            x_BTGHK = rotate(x_BTGHK, cos_BTGF, sin_BTGF, inverse=site == "o")
            x_BTHK = torch.cat([first, x_BTGHK.flatten(2, 3)], dim=-1)
        if custom is not None and site == "o":
            x_BTHK = custom.turn(site, at_least_float32(x_BTHK), position_BT).to(x_BTHK.dtype)
        return x_BTHK


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32 at least, as a user's class has its parameters."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def packed(k_BGTK: Tensor, rows: dict[str, Tensor]) -> Tensor:
    """Return keys with further features, which hold rows of their tokens, in float32.

    `rows` [B, T, ...] are flattened, padded with zeros and dealt out to the G heads.
    """
    if not rows:
        return k_BGTK
    x_BTN = torch.cat([x.reshape(*x.shape[:2], -1) for x in rows.values()], dim=-1)
    x_BTN = nn.functional.pad(x_BTN, (0, -x_BTN.shape[-1] % k_BGTK.shape[1]))
    x_BGTN = x_BTN.unflatten(-1, (k_BGTK.shape[1], -1)).transpose(1, 2)
    return torch.cat([at_least_float32(k_BGTK), x_BGTN], dim=-1)


def unpacked(
    k_BGEK: Tensor, features: int, new: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what `packed` has put together.

    Args:
        k_BGEK: packed keys of all E tokens.
        features: K, the features of a key itself.
        new: the rows of the newest tokens, which say the names, shapes and dtypes.
    Returns:
        Keys of K features, and the rows of all E tokens, [B, E, ...] by name.
    """
    k_BGEK, x_BGEN = k_BGEK.tensor_split([features], dim=-1)
    x_BEN = x_BGEN.transpose(1, 2).flatten(2)
    rows = {}
    for name, x_BT in new.items():
        first_BEN, x_BEN = x_BEN.tensor_split([x_BT[0, 0].numel()], dim=-1)
        rows[name] = first_BEN.reshape(*first_BEN.shape[:2], *x_BT.shape[2:]).to(x_BT.dtype)
    return k_BGEK, rows


def added(
    terms: list[Tensor], mask: Tensor | None, offset_TE: Tensor, window: int | None, q_BHTK: Tensor
) -> Tensor:
    """Return numbers to be added to the scores, [B or 1, 1 or H, T, E], in the queries' dtype.

    Args:
        terms: biases, [H, T, E] or [B, H, T, E].
        mask: true where a query attends, or numbers to be added, [B, 1, T, E]; None: a query
            attends to itself and all keys before it.
        offset_TE: j - i of query i and key j.
        window: the number of latest keys that a query attends to; None: all.
        q_BHTK: the queries, for their dtype and device.
    """
    lowest = torch.finfo(q_BHTK.dtype).min
    total = q_BHTK.new_zeros(1, 1, *offset_TE.shape)
    for term in terms:
        total = total + term.to(total.dtype)
    if window is not None:
        total = total.masked_fill(offset_TE <= -window, lowest)
    if mask is None:
        mask = offset_TE <= 0
    if mask.dtype == torch.bool:
        return total.masked_fill(~mask, lowest)
    # No sum falls below the lowest number: a row of padding would then be 0/0.
    return (total + mask[..., : offset_TE.shape[1]]).clamp(min=lowest)


class RopeExpPreTrainedModel(LlamaPreTrainedModel):
    """Loading, saving and initial weights."""

    config_class = RopeExpConfig
    # bfloat16 lacks many positions above 256. These are regular expressions: a bare `own` would
    # also match `down_proj`.
    _keep_in_fp32_modules_strict: ClassVar = ["rotary_emb", r"\.own\."]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if not isinstance(module, Position):
            return
        # What is not saved is made again.
        config: Any = self.config
        made = encodings(config, module.sizes.layer).values()
        [begun] = [encoding for encoding in made if type(encoding) is type(module)]
        for name, value in [*begun.named_parameters(), *begun.named_buffers()]:
            target = operator.attrgetter(name)(module)
            if target.ndim == 2 and target.requires_grad:
                init.normal_(target, std=self.config.initializer_range)
            else:
                init.copy_(target, value)


class RopeExpModel(RopeExpPreTrainedModel, LlamaModel):
    """Embedding, layers and last norm."""

    def __init__(self, config: RopeExpConfig) -> None:
        super().__init__(config)
        for number, layer in enumerate(self.layers):
            layer.self_attn = RopeExpAttention(config, number)
        self.rotary_emb = Rotary(config)
        for name, encoding in encodings(config, None).items():
            self.add_module(name, encoding)
        self.post_init()

    @property
    def num_positions(self) -> int | None:
        """One more than the last position that all encodings have, also those of layers."""
        limits = []
        for module in self.modules():
            if isinstance(module, Position) and module.limit is not None:
                limits.append(module.limit)
        return min(limits, default=None)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        num_rows, length = inputs_embeds.shape[:2]
        mask = attention_mask
        if position_ids is None:
            # Count from each row's first token: a rotation that is not relative depends on where a
            # row begins, behind its padding.
            cache = kwargs.get(CACHE)
            num_before = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(length, device=inputs_embeds.device)[None] + num_before
            if mask is not None and mask.ndim == 2:
                position_BE = (mask.long().cumsum(-1) - 1).clamp(min=0)
                position_ids = position_BE[:, num_before : num_before + length]
        position_ids = position_ids + self.config.rope_start

        limit = None if torch.compiler.is_compiling() else self.num_positions
        if limit is not None:
            first, last = int(position_ids.min()), int(position_ids.max())
            if first < 0 or last >= limit:
                raise ValueError(f"the model has {limit} positions, and no more")
        acting: list[Any] = [child for child in self.children() if isinstance(child, Position)]
        for encoding in acting:
            embeds = encoding.embed(at_least_float32(inputs_embeds), position_ids)
            inputs_embeds = embeds.to(inputs_embeds.dtype)

        if not self.config.is_causal:
            # Every token attends to every real one.
            use_cache = False
            attention_mask = inputs_embeds.new_zeros(num_rows, 1, length, length)
            if mask is not None:
                lowest = torch.finfo(attention_mask.dtype).min
                attention_mask = attention_mask.masked_fill(mask[:, None, None] == 0, lowest)
        return super().forward(
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            score_bias=getattr(self, "score_bias", None),
            **kwargs,
        )


class RopeExpForCausalLM(RopeExpPreTrainedModel, LlamaForCausalLM):
    """A language model: predicts the next token."""

    def __init__(self, config: RopeExpConfig) -> None:
        LlamaPreTrainedModel.__init__(self, config)
        self.model = RopeExpModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


class RopeExpForMaskedLM(RopeExpPreTrainedModel):
    """A model that predicts hidden tokens from both sides; its loss follows from its name."""

    _tied_weights_keys: ClassVar = LlamaForCausalLM._tied_weights_keys
    __init__ = RopeExpForCausalLM.__init__
    forward = LlamaForCausalLM.forward


RopeExpConfig.register_for_auto_class()
RopeExpModel.register_for_auto_class("AutoModel")
RopeExpForCausalLM.register_for_auto_class("AutoModelForCausalLM")
RopeExpForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
