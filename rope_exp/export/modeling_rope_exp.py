"""A LLaMA whose attention rotates any subset of queries, keys, values and outputs.

    q_i = R_i W_q x_i,  k_j = R_j W_k x_j,  v_j = R_j W_v x_j,  o_i = R_i^T sum_j a_ij v_j

R_m rotates the feature pair (f, f + F) of a head by m * theta_f. The output is rotated back by its
query's position, so with rotated values it depends on j - i alone (Su 2025, eq. 5). The cache holds
rotated keys and values.

A user's own position encoding acts in each layer, or on the input. It can cache facts about earlier
tokens in further features of their keys.

This file is copied beside exported weights. It imports torch, transformers and its configuration.

Shapes: B batch, T query, E key, H query heads, G key/value heads, K features, F frequencies.
"""

import inspect
import math
import operator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, MaskedLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaForCausalLM,
    LlamaModel,
    LlamaPreTrainedModel,
    eager_attention_forward,
)
from transformers.utils import can_return_tuple  # type: ignore[attr-defined]

from .configuration_rope_exp import RopeExpConfig

# The name of the argument, which changes from version 5.24 on.
_ARGUMENTS = inspect.signature(LlamaAttention.forward).parameters
CACHE = "cache" if "cache" in _ARGUMENTS else "past_key_values"
# From this position on, whole turns are removed from angles in float64, before they are rounded.
FAR = 2**16
# T5's table of biases: its buckets, and the distance from which all share the last.
NUM_BUCKETS = 32
LARGEST_DISTANCE = 128
# The class of a position encoding of a user's own; a copy of this file beside weights imports it.
OWN: Any = None


Table = tuple[Tensor, Tensor]


class Positions(NamedTuple):
    """Tables of q and k, and of v and o, by layer: (cos, sin), each [B, 1 or G, T, F].

    The bias of scores, if there is one, and the positions follow.
    """

    qk: list[Table]
    vo: list[Table]
    bias: "ScoreBias | None"
    position_BT: Tensor


class Rotary(nn.Module):
    """The rotation tables of every layer; frequencies are computed, or parameters."""

    def __init__(self, config: RopeExpConfig, bias: "ScoreBias | None") -> None:
        super().__init__()
        self.config = config
        # In a tuple, it is no part of this module.
        self.bias = (bias,)
        shapes = {
            "model": (),
            "layer": (config.num_hidden_layers,),
            "head": (config.num_hidden_layers, config.num_key_value_heads or 0),
        }
        rotating = {site for sites in config.rotate for site in sites}
        names = iter(("inv_freq", "inv_freq_vo"))
        self.learned = {}
        for pair in ("qk", "vo"):
            if config.rope_learned and rotating & set(pair):
                self.learned[pair] = next(names)
                shape = (*shapes[config.rope_scope], self._features(pair) // 2)
                self.register_parameter(self.learned[pair], nn.Parameter(torch.empty(shape)))

    def _apply(self, fn: Any, recurse: bool = True) -> "Rotary":
        """Move learned frequencies as `fn` does, and keep them in float32."""

        def move(parameter: Tensor) -> Tensor:
            moved: Tensor = fn(parameter)
            return moved if parameter.is_meta else parameter.to(moved.device)

        super()._apply(move, recurse)
        return self

    def _features(self, pair: str) -> int:
        return self.config.rope_features if pair == "qk" else self.config.rope_features_vo

    def theta(self, pair: str, device: torch.device) -> Tensor:
        """Return frequencies in radians a position: [F], [layers, F] or [layers, G, F]."""
        theta_F = self.computed(pair, device)
        if pair not in self.learned:
            return theta_F
        learned: Tensor = getattr(self, self.learned[pair])
        return theta_F * learned.exp() if self.config.rope_learned == "log" else learned.abs()

    def computed(self, pair: str, device: torch.device) -> Tensor:
        """Return theta_f = base^(-2f/n), on n features.

        It is computed anew: a buffer that is not saved would hold nothing after loading.
        """
        features = self._features(pair)
        base = self.config.rope_base if pair == "qk" else self.config.rope_base_vo
        exponent_F = torch.arange(0, features, 2, device="cpu").float() / features
        return (1.0 / (base**exponent_F)).to(device)

    def forward(self, hidden_states: Tensor, position_ids: Tensor) -> Positions:
        position_BT = position_ids + self.config.rope_start
        qk, vo = (self._tables(pair, position_BT) for pair in ("qk", "vo"))
        return Positions(qk, vo, *self.bias, position_BT)

    def _tables(self, pair: str, position_BT: Tensor) -> list[Table]:
        theta = self.theta(pair, position_BT.device)
        if theta.ndim == 1:
            return [_table(theta[None], position_BT)] * self.config.num_hidden_layers
        if theta.ndim == 2:
            theta = theta[:, None]
        return [_table(theta_GF, position_BT) for theta_GF in theta]


def _table(theta_GF: Tensor, position_BT: Tensor) -> Table:
    position_B1T1 = position_BT[:, None, :, None]
    angle_BGTF = position_B1T1.float() * theta_GF[:, None]
    exact_BGTF = (position_B1T1.double() * theta_GF[:, None].double()).remainder(math.tau).float()
    angle_BGTF = torch.where(position_B1T1.abs() < FAR, angle_BGTF, exact_BGTF)
    return angle_BGTF.cos(), angle_BGTF.sin()


def rotated(x_BHTK: Tensor, table: Table, *, inverse: bool = False) -> Tensor:
    """Return x with its first 2F features turned by a table's angles, or back by them."""
    cos, sin = table
    if cos.shape[1] not in (1, x_BHTK.shape[1]):
        # Each key/value head's frequencies serve its query heads.
        num_shared = x_BHTK.shape[1] // cos.shape[1]
        cos, sin = (each.repeat_interleave(num_shared, dim=1) for each in table)
    if inverse:
        sin = -sin
    num_pairs = cos.shape[-1]
    x1, x2, rest = x_BHTK.split([num_pairs, num_pairs, x_BHTK.shape[-1] - 2 * num_pairs], dim=-1)
    turned = [x1.float() * cos - x2.float() * sin, x2.float() * cos + x1.float() * sin]
    return torch.cat([*(part.to(x_BHTK.dtype) for part in turned), rest], dim=-1)


class RopeExpAttention(LlamaAttention):
    """LlamaAttention with a rotation on the layer's sites, a norm and a bias of scores."""

    def __init__(self, config: RopeExpConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.sites = frozenset(config.rotate[layer_idx])
        self.is_causal = config.is_causal
        self.own = placed(config, layer_idx)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Positions,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        key_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q_BHTK = self.q_proj(hidden_states).view(shape)
        k_BGTK = self.k_proj(hidden_states).view(shape)
        v_BGTK = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        if self.config.qk_norm:
            q_BHTK = self.q_norm(q_BHTK.float()).to(q_BHTK.dtype)
            k_BGTK = self.k_norm(k_BGTK.float()).to(k_BGTK.dtype)
        q_BHTK = self._turned("q", q_BHTK.transpose(1, 2), position_embeddings)
        k_BGTK = self._turned("k", k_BGTK.transpose(1, 2), position_embeddings)
        v_BGTK = self._turned("v", v_BGTK, position_embeddings)

        of_tokens: dict[str, Tensor] = {}
        if self.own is not None and self.own.overrides("scores"):
            of_tokens = self.own.of_tokens(wide(hidden_states), position_embeddings.position_BT)
        features = k_BGTK.shape[-1]
        k_BGTK = packed(k_BGTK, of_tokens)
        num_before = 0
        cache = past_key_values if cache is None else cache
        if cache is not None:
            # A static cache counts in a tensor, which `update` changes.
            num_before = cache.get_seq_length(self.layer_idx) + 0
            # Older versions are told where the new keys are.
            places = kwargs.get("cache_position")
            told = () if places is None else ({"cache_position": places},)
            k_BGTK, v_BGTK = cache.update(k_BGTK, v_BGTK, self.layer_idx, *told)
        k_BGTK, kept = unpacked(k_BGTK, features, of_tokens)
        more = None
        if self.own is not None and self.own.overrides("scores"):
            assert key_positions is not None
            kept["position_BE"] = key_positions
            more = self._scores(kept, num_before, q_BHTK, k_BGTK)
        if position_embeddings.bias is not None:
            attention_mask = position_embeddings.bias(
                attention_mask, num_before, q_BHTK, k_BGTK, more
            )

        kernel = self.config._attn_implementation
        is_eager = kernel == "eager"
        attend = eager_attention_forward if is_eager else ALL_ATTENTION_FUNCTIONS[kernel]
        heads = (q_BHTK, k_BGTK, v_BGTK)
        # A user's class may make queries and keys wider.
        scaling = q_BHTK.shape[-1] ** -0.5
        output, weights = attend(self, *heads, attention_mask, scaling=scaling, **kwargs)
        o_BHTK = self._turned("o", output.transpose(1, 2), position_embeddings)
        o_BTD = o_BHTK.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)
        return self.o_proj(o_BTD), weights

    def _turned(self, site: str, x_BHTK: Tensor, positions: Positions) -> Tensor:
        if site != "o":
            x_BHTK = self._own_turned(site, x_BHTK, positions)
        if site in self.sites:
            tables = positions.qk if site in "qk" else positions.vo
            # A class of one's own may have put further features first.
            num_further = x_BHTK.shape[-1] - self.head_dim
            further, x_BHTK = x_BHTK.tensor_split([num_further], dim=-1)
            x_BHTK = rotated(x_BHTK, tables[self.layer_idx], inverse=site == "o")
            x_BHTK = torch.cat([further, x_BHTK], dim=-1)
        return self._own_turned(site, x_BHTK, positions) if site == "o" else x_BHTK

    def _own_turned(self, site: str, x_BHTK: Tensor, positions: Positions) -> Tensor:
        if self.own is None:
            return x_BHTK
        turned = self.own.turn(site, wide(x_BHTK).transpose(1, 2), positions.position_BT)
        return turned.transpose(1, 2).to(x_BHTK.dtype)

    def _scores(
        self, kept: dict[str, Tensor], num_before: Any, q_BHTK: Tensor, k_BGEK: Tensor
    ) -> Tensor | None:
        """Return what the user's class adds to the scores; 0 where a cache has room for more."""
        num_queries = q_BHTK.shape[2]
        num_keys = int(num_before) + num_queries
        kept = {name: x_BE[:, :num_keys] for name, x_BE in kept.items()}
        more: Tensor | None = self.own.scores(kept, num_queries)
        if more is None:
            return None
        return nn.functional.pad(more, (0, k_BGEK.shape[2] - num_keys))


def placed(config: RopeExpConfig, layer: int | None) -> Any:
    """Return the user's position encoding of a layer, or of the input (None); None: it has none."""
    if OWN is None:
        return None
    keys = (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_hidden_layers",
        "num_positions",
    )
    sizes = {key: getattr(config, key) for key in keys}
    made = OWN.placed(layer, causal=config.is_causal, **sizes)
    # A model may be made in bfloat16, which holds no odd position past 256.
    return None if made is None else made.float()


def wide(x: Tensor) -> Tensor:
    """Return x in float32 at least, as a user's class has its parameters."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def packed(k_BGTK: Tensor, of_tokens: dict[str, Tensor]) -> Tensor:
    """Return keys with further features, which hold other numbers of their tokens."""
    if not of_tokens:
        return k_BGTK
    num_groups = k_BGTK.shape[1]
    x_BTN = torch.cat([each.reshape(*each.shape[:2], -1) for each in of_tokens.values()], dim=-1)
    x_BTN = nn.functional.pad(x_BTN, (0, -x_BTN.shape[-1] % num_groups))
    x_BGTN = x_BTN.unflatten(-1, (num_groups, -1)).transpose(1, 2)
    return torch.cat([k_BGTK, x_BGTN.to(k_BGTK.dtype)], dim=-1)


def unpacked(
    k_BGEK: Tensor, features: int, of_tokens: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return keys of so many features, and the other numbers of their tokens, by name."""
    k_BGEK, x_BGEN = k_BGEK.tensor_split([features], dim=-1)
    x_BEN = x_BGEN.transpose(1, 2).flatten(2)
    kept = {}
    for name, new in of_tokens.items():
        shape = new.shape[2:]
        first_BEN, x_BEN = x_BEN.tensor_split([math.prod(shape)], dim=-1)
        kept[name] = first_BEN.reshape(*first_BEN.shape[:2], *shape).to(new.dtype)
    return k_BGEK, kept


def has_bias(config: RopeExpConfig) -> bool:
    """Return whether numbers are added to the scores."""
    of_own = OWN is not None and OWN.overrides("scores")
    return config.score_bias != "none" or config.window is not None or of_own


class AddedPositions(nn.Module):
    """Sines and cosines, or a learned row, of each position."""

    def __init__(self, config: RopeExpConfig) -> None:
        super().__init__()
        self.config = config
        if config.position_input == "learned":
            self.weight = nn.Parameter(torch.empty(config.num_positions, config.hidden_size))

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor) -> Tensor:
        config = self.config
        position_BT = position_ids + config.rope_start
        if config.position_input == "learned":
            is_known = torch.compiler.is_compiling() or (
                int(position_BT.min()) >= 0 and int(position_BT.max()) < len(self.weight)
            )
            if not is_known:
                raise ValueError(f"the model has learned {len(self.weight)} positions, and no more")
            return inputs_embeds + self.weight[position_BT]
        if config.position_input == "none":
            return inputs_embeds
        exponent_F = torch.arange(0, config.hidden_size, 2, device=position_BT.device).double()
        theta_F = 1.0 / (10000.0 ** (exponent_F / config.hidden_size))
        angle_BTF = position_BT.double()[..., None] * theta_F
        sines_BTD = torch.cat([angle_BTF.sin(), angle_BTF.cos()], dim=-1)
        return inputs_embeds + config.position_scale * sines_BTD.to(inputs_embeds.dtype)


class ScoreBias(nn.Module):
    """Terms added to scores by distance: a bias, and the lowest number beyond a window.

    The bias is ALiBi's slopes or T5's learned buckets.
    """

    def __init__(self, config: RopeExpConfig) -> None:
        super().__init__()
        self.config = config
        if config.score_bias == "t5":
            self.weight = nn.Parameter(torch.empty(NUM_BUCKETS, config.num_attention_heads))

    def forward(
        self,
        mask: Tensor | None,
        num_before: int,
        q_BHTK: Tensor,
        k_BGEK: Tensor,
        more: Tensor | None = None,
    ) -> Tensor:
        """Return numbers to be added to the scores, [B or 1, 1 or H, T, E].

        Args:
            mask: [B, 1, T, E], true where a query attends, or numbers to be added; None: a query
                attends to itself and all keys before it.
            num_before: the number of keys that were in the cache.
            more: added as well, [H, T, E] or [B, H, T, E].
        """
        lowest = torch.finfo(q_BHTK.dtype).min
        place_T1 = torch.arange(q_BHTK.shape[2], device=q_BHTK.device)[:, None] + num_before
        offset_TE = torch.arange(k_BGEK.shape[2], device=q_BHTK.device) - place_T1
        found = torch.zeros_like(offset_TE, dtype=q_BHTK.dtype)[None, None]
        if self.config.score_bias != "none":
            found = found + self._bias(offset_TE).to(q_BHTK.dtype)
        if more is not None:
            found = found + more.to(q_BHTK.dtype)
        if self.config.window is not None:
            found = found.masked_fill(offset_TE <= -self.config.window, lowest)
        if mask is None:
            mask = offset_TE <= 0
        if mask.dtype == torch.bool:
            return found.masked_fill(~mask, lowest)
        # No sum falls below the lowest number: a row of padding would then be 0/0.
        return (found + mask[..., : k_BGEK.shape[2]]).clamp(min=lowest)

    def _bias(self, offset_TE: Tensor) -> Tensor:
        if self.config.score_bias == "alibi":
            slopes_H = torch.tensor(alibi_slopes(self.config.num_attention_heads))
            return -slopes_H.to(offset_TE.device)[:, None, None] * offset_TE.abs()
        return self.weight[t5_buckets(offset_TE, not self.config.is_causal)].permute(2, 0, 1)


def alibi_slopes(num_heads: int) -> list[float]:
    """Return 2^(-8(h+1)/H), steepest first; between powers of two, as BLOOM does."""
    power = 2 ** (num_heads.bit_length() - 1)
    exponents = [8 * (head + 1) / power for head in range(power)]
    exponents += [8 * (2 * head + 1) / (2 * power) for head in range(num_heads - power)]
    return [2.0**-exponent for exponent in exponents]


def t5_buckets(offset_TE: Tensor, is_bidirectional: bool) -> Tensor:
    """Return the bucket of each key's offset: own ones nearby, logarithmic ones further away."""
    num_buckets = NUM_BUCKETS // 2 if is_bidirectional else NUM_BUCKETS
    side_TE = (offset_TE > 0).long() * num_buckets * is_bidirectional
    distance_TE = offset_TE.abs() if is_bidirectional else (-offset_TE).clamp(min=0)
    exact = num_buckets // 2
    octaves_TE = torch.log2(distance_TE.clamp(min=exact).double() / exact)
    shared_TE = octaves_TE * (num_buckets - exact) / math.log2(LARGEST_DISTANCE / exact)
    shared_TE = (exact + shared_TE).long().clamp(max=num_buckets - 1)
    return side_TE + torch.where(distance_TE < exact, distance_TE, shared_TE)


class RopeExpPreTrainedModel(LlamaPreTrainedModel):
    """Loading, saving and initial weights."""

    config_class = RopeExpConfig
    # Positions of more than 256 have no bfloat16. These are patterns: `own` is in `down_proj`, too.
    _keep_in_fp32_modules_strict: ClassVar = ["rotary_emb", r"\.own\."]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Rotary):
            for pair, name in module.learned.items():
                theta_F = module.computed(pair, torch.device("cpu"))
                begin_F = theta_F * 0 if self.config.rope_learned == "log" else theta_F
                parameter = getattr(module, name)
                init.copy_(parameter, begin_F.expand_as(parameter))
        elif isinstance(module, AddedPositions | ScoreBias) and hasattr(module, "weight"):
            init.normal_(module.weight, std=self.config.initializer_range)
        elif OWN is not None and isinstance(module, OWN):
            # What is not saved is made again.
            begun = OWN(module.sizes)
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
        self.added_positions = AddedPositions(config)
        self.score_bias = ScoreBias(config)
        self.own = placed(config, None)
        self.has_own = OWN is not None
        # Flash and flex kernels take no numbers to be added to the scores.
        self.is_plain = config.is_causal and not has_bias(config)
        self.rotary_emb = Rotary(config, self.score_bias if has_bias(config) else None)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        kernel = self.config._attn_implementation
        if kernel not in ("eager", "sdpa") and not self.is_plain:
            raise ValueError(
                f"attn_implementation={kernel!r} takes no bias, window or bidirectional mask: use "
                "'sdpa' or 'eager'"
            )
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)

        use_cache = self.config.use_cache if use_cache is None else use_cache
        use_cache = use_cache and self.config.is_causal
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        num_before = 0 if cache is None else cache.get_seq_length()
        if position_ids is None:
            position_ids = counted(inputs_embeds, attention_mask, num_before)
        inputs_embeds = self.added_positions(inputs_embeds, position_ids)
        if self.has_own:
            start = self.config.rope_start
            position_BT = position_ids + start
            # Cached tokens are the ones before the new; those before the first are padding.
            before_E = torch.arange(int(num_before), 0, -1, device=position_BT.device)
            old_BE = (position_BT[:, :1] - before_E).clamp(min=start)
            kwargs["key_positions"] = torch.cat([old_BE, position_BT], dim=-1)
            if self.own is not None:
                added = self.own.embed(wide(inputs_embeds), position_BT)
                inputs_embeds = added.to(inputs_embeds.dtype)

        if not self.config.is_causal:
            attention_mask = both_ways(attention_mask, inputs_embeds)
        return super().forward(
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **{CACHE: cache},
            **kwargs,
        )


def both_ways(mask: Tensor | None, inputs_embeds: Tensor) -> Tensor:
    """Return numbers to be added to scores, [B, 1, T, T]: every token attends to every real one."""
    num_rows, length = inputs_embeds.shape[:2]
    found = inputs_embeds.new_zeros(num_rows, 1, length, length)
    if mask is not None:
        found = found.masked_fill(mask[:, None, None] == 0, torch.finfo(found.dtype).min)
    return found


def counted(inputs_embeds: Tensor, attention_mask: Tensor | None, num_before: int) -> Tensor:
    """Return positions that count from each row's first token, [B or 1, T].

    A rotation that is not relative depends on where a row begins, behind its padding.
    """
    num_new = inputs_embeds.shape[1]
    if attention_mask is not None and attention_mask.ndim == 2:
        position_BE = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        return position_BE[:, num_before : num_before + num_new]
    return torch.arange(num_new, device=inputs_embeds.device)[None] + num_before


class RopeExpForCausalLM(RopeExpPreTrainedModel, LlamaForCausalLM):
    """A language model: predicts the next token."""

    def __init__(self, config: RopeExpConfig) -> None:
        LlamaPreTrainedModel.__init__(self, config)
        self.model = RopeExpModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


class RopeExpForMaskedLM(RopeExpPreTrainedModel):
    """A model that predicts hidden tokens from both sides."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: RopeExpConfig) -> None:
        super().__init__(config)
        self.model = RopeExpModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        outputs = self.model(input_ids, attention_mask, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


RopeExpConfig.register_for_auto_class()
RopeExpModel.register_for_auto_class("AutoModel")
RopeExpForCausalLM.register_for_auto_class("AutoModelForCausalLM")
RopeExpForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
