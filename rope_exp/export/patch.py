"""A rotation on any subset of sites in a model of transformers that somebody else has trained.

    import rope_exp
    model = AutoModelForCausalLM.from_pretrained(...)     # a Llama, Qwen, Mistral, SmolLM, ...
    undo = rope_exp.patch(model, rotate="vo")

Attention gets tables that rotate nothing, and hooks rotate what its projections (or the norms after
them) return: q, k and v before the cache, and o back before the last projection. Weights, cache and
attention kernel stay the model's own.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import rotate_half

from rope_exp.errors import ConfigError
from rope_exp.rope import rotate as rotated
from rope_exp.sections import SITES

# A first position at which rotations do something, and a relative error that rounding stays below.
FIRST = 7
CLOSE = 0.02


def patch(model: nn.Module, rotate: Iterable[str]) -> Callable[[], None]:
    """Rotate these sites in every layer that rotates.

    A patch is not saved with the model.

    Args:
        model: a model of transformers, with or without its language-model head.
        rotate: some of q, k, v, o, by the model's own tables; no other site rotates.
    Returns:
        A function without arguments that removes the patch.
    Raises:
        ConfigError: it is no such model, or something acts between our rotations and its attention.
    """
    sites = frozenset(rotate)
    if not sites <= set(SITES):
        raise ConfigError("rotate", "".join(sorted(sites)), "must be some of q, k, v, o")
    # SmolLM3 has layers that rotate nothing.
    needed = {f"{site}_proj" for site in SITES} | {"head_dim"}
    modules: list[Any] = [m for m in model.modules() if getattr(m, "use_rope", True)]
    layers = [module for module in modules if all(hasattr(module, name) for name in needed)]
    if not layers:
        name = type(model).__name__
        raise ConfigError("model", name, "has no attention with q_proj, k_proj, v_proj and o_proj")

    some = torch.arange(8.0)[None]
    for module in modules:
        # By type of layer, the name has a prefix.
        scales = {v for name, v in vars(module).items() if name.endswith("attention_scaling")}
        if scales - {1.0}:
            raise ConfigError("model", type(model).__name__, "scales its tables (YaRN)")
    for layer in layers:
        theirs = getattr(sys.modules[type(layer).__module__], "rotate_half", torch.zeros_like)
        reason = ""
        if getattr(layer, "is_patched", False):
            reason = "is patched already; take that patch back first"
        elif not torch.equal(theirs(some), rotate_half(some)):
            reason = "pairs other features than Llama"
        elif getattr(getattr(layer, "config", None), "clip_qkv", None) is not None:
            reason = "clips what its projections return (clip_qkv)"
        if reason:
            raise ConfigError("model", type(layer).__name__, reason)
    _measure(model, layers)

    hooks = ExitStack()
    for layer in layers:
        _hook(layer, sites, hooks)
        layer.is_patched = True
        hooks.callback(setattr, layer, "is_patched", False)
    return hooks.close


@torch.no_grad()
def _measure(model: nn.Module, layers: Sequence[Any]) -> None:
    """Refuse a model in which our rotations of q and k, or of v and o, are not what they should be.

    With its own tables on q and k, a layer must return its own output. On single tokens, rotated
    values that are rotated back are the values. Layers are compared one by one, each on its own
    input: through a deep model, the rounding of bfloat16 grows beyond any useful tolerance.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    # More tokens than heads, so that the order of a norm's axes can be told.
    num_tokens = 1 + max(layer.o_proj.in_features // int(layer.head_dim) for layer in layers)
    place_N = torch.arange(num_tokens, device=next(model.parameters()).device)
    id_N = place_N % model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    calls: dict[Any, Any] = {}

    def record(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls[layer] = (args, kwargs, output[0].float())

    try:
        # One sequence; then each token alone, as one of them may be padding, whose row is zero.
        for sites, shape in (("qk", (1, -1)), ("vo", (-1, 1))):
            position_BT = place_N.view(shape) + FIRST
            with ExitStack() as hooks:
                for layer in layers:
                    hooks.enter_context(layer.register_forward_hook(record, with_kwargs=True))
                model(id_N.view(shape), position_ids=position_BT, use_cache=False)
            for layer in layers:
                if layer not in calls:
                    reason = "is not reached by text; patch the part of the model that reads text"
                    raise ConfigError("model", type(layer).__name__, reason)
                args, kwargs, expected = calls[layer]
                if kwargs.get("position_embeddings") is None:
                    raise ConfigError("model", type(layer).__name__, "is given no rotary tables")
                with ExitStack() as hooks:
                    _hook(layer, frozenset(sites), hooks)
                    output = layer(*args, **kwargs)[0].float()
                if not (output - expected).norm() <= CLOSE * expected.norm():
                    reason = f"does more to {' and '.join(sites)} than Llama's attention"
                    raise ConfigError("model", type(model).__name__, reason)
    finally:
        for module in training:
            module.training = True


def _hook(layer: Any, sites: frozenset[str], hooks: ExitStack) -> None:
    """Rotate the sites of one layer until `hooks` are closed."""
    tables: list[Tensor] = []

    def take_tables(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        tables[:] = kwargs["position_embeddings"]
        cos_BTK, sin_BTK = tables
        nothing = (torch.ones_like(cos_BTK), torch.zeros_like(sin_BTK))
        return args, kwargs | {"position_embeddings": nothing}

    def rotate_heads(x: Tensor, *, inverse: bool = False) -> Tensor:
        # Their tables have the angle of a pair twice.
        cos_BTF, sin_BTF = (table.chunk(2, dim=-1)[0] for table in tables)
        x_BTHK = x.reshape(*x.shape[:2], -1, layer.head_dim)
        return rotated(x_BTHK, cos_BTF, sin_BTF, inverse=inverse).view(x.shape)

    def rotate_output(module: Any, args: Any, x: Tensor) -> Tensor:
        # As `_measure` finds, some norms return [B, H, T, K].
        if x.ndim == 4 and x.shape[1] != tables[0].shape[1] == x.shape[2]:
            module.is_heads_first = True
        if getattr(module, "is_heads_first", False):
            return rotate_heads(x.transpose(1, 2)).transpose(1, 2)
        return rotate_heads(x)

    def rotate_back(_: nn.Module, args: Any) -> Any:
        return (rotate_heads(args[0], inverse=True),)

    hooks.enter_context(layer.register_forward_pre_hook(take_tables, with_kwargs=True))
    for site in sites & {"q", "k", "v"}:
        # Queries and keys are rotated behind their norm.
        last = getattr(layer, f"{site}_norm", None) or getattr(layer, f"{site}_proj")
        hooks.enter_context(last.register_forward_hook(rotate_output))
    if "o" in sites:
        hooks.enter_context(layer.o_proj.register_forward_pre_hook(rotate_back))
