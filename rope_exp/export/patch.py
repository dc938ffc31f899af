"""A rotation on any subset of sites in a model of transformers that somebody else has trained.

    import rope_exp
    model = AutoModelForCausalLM.from_pretrained(...)     # a Llama, Qwen, Mistral, SmolLM, ...
    undo = rope_exp.patch(model, rotate="vo")

Attention gets tables that rotate nothing, and hooks rotate what its projections (or the norms after
them) return: q, k and v before the cache, and o back before the last projection. Weights, cache and
attention kernel stay the model's own.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import rotate_half

from rope_exp.errors import ConfigError
from rope_exp.rope import rotate
from rope_exp.sections import SITES

# A first position at which rotations do something, and a relative error that rounding stays below.
FIRST = 7
CLOSE = 0.02


def patch(model: nn.Module, rotate: Iterable[str]) -> Callable[[], None]:
    """Rotate these sites in every layer that rotates queries and keys, by the model's own tables.

    Args:
        rotate: some of q, k, v, o; none: no rotation at all.
    Returns:
        A function that takes the patch back. A patch is not saved with the model.
    Raises:
        ConfigError: there is no such site, no attention with projections, a patch already, or
            something in the model that acts between our rotations and its attention.
    """
    sites = frozenset(rotate)
    if not sites <= set(SITES):
        raise ConfigError("rotate", "".join(sorted(sites)), "must be some of q, k, v, o")
    layers = [module for module in model.modules() if _is_attention(module)]
    if not layers:
        name = type(model).__name__
        raise ConfigError("model", name, "has no attention with q_proj, k_proj, v_proj and o_proj")

    for module in model.modules():
        facts = vars(module).items()
        # By type of layer, the name has a prefix.
        if any(name.endswith("attention_scaling") and value != 1.0 for name, value in facts):
            raise ConfigError("model", type(model).__name__, "scales its tables (YaRN)")
    for layer in layers:
        _check(layer)
    _measure(model, layers)

    handles = [handle for layer in layers for handle in _hooked(layer, sites)]
    for layer in layers:
        layer.is_patched = True

    def undo() -> None:
        for handle in handles:
            handle.remove()
        for layer in layers:
            layer.is_patched = False

    return undo


def _check(layer: nn.Module) -> None:
    """Refuse attention that is patched already, or whose pairs are not half a head apart."""
    name = type(layer).__name__
    if getattr(layer, "is_patched", False):
        raise ConfigError("model", name, "is patched already; take that patch back first")
    theirs = getattr(sys.modules[type(layer).__module__], "rotate_half", None)
    some = torch.arange(8.0)[None]
    if theirs is None or not torch.equal(theirs(some), rotate_half(some)):
        raise ConfigError("model", name, "pairs other features than Llama, half a head apart")
    if getattr(getattr(layer, "config", None), "clip_qkv", None) is not None:
        raise ConfigError("model", name, "clips what its projections return (clip_qkv)")


@torch.no_grad()
def _measure(model: nn.Module, layers: Sequence[Any]) -> None:
    """Refuse a model in which our rotations of q and k, or of v and o, are not what they should be.

    With its own tables on q and k, a layer must return its own output. Of single tokens, rotated
    values that are rotated back are the values. A gate or a norm in between, or a layer that
    rotates nothing, shows in this. Layers are compared one by one, each on its own input: through
    a deep model, the rounding of bfloat16 grows beyond any useful tolerance.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    device = next(model.parameters()).device
    # More tokens than heads, so that the order of a norm's axes can be told.
    num_tokens = 1 + max(layer.o_proj.in_features // int(layer.head_dim) for layer in layers)
    place_N = torch.arange(num_tokens, device=device)
    id_N = place_N % model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    calls: dict[Any, Any] = {}

    def record(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls[layer] = (args, kwargs, output[0].float())

    try:
        # One sequence; then each token alone, as one of them may be padding, whose row is zero.
        for sites, shape in (("qk", (1, -1)), ("vo", (-1, 1))):
            position_BT = place_N.view(shape) + FIRST
            with _until_then(
                layer.register_forward_hook(record, with_kwargs=True) for layer in layers
            ):
                model(id_N.view(shape), position_ids=position_BT, use_cache=False)
            for layer, (args, kwargs, own) in calls.items():
                with _until_then(_hooked(layer, frozenset(sites))):
                    found = layer(*args, **kwargs)[0].float()
                if not (found - own).norm() <= CLOSE * own.norm():
                    allowed = f"does more to {' and '.join(sites)} than Llama's attention"
                    raise ConfigError("model", type(model).__name__, allowed)
    finally:
        for module in training:
            module.training = True


@contextmanager
def _until_then(hooks: Iterable[Any]) -> Iterator[None]:
    """Keep hooks until the block ends."""
    handles = list(hooks)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_attention(module: nn.Module) -> bool:
    named = [f"{site}_proj" for site in SITES]
    has_projections = all(hasattr(module, name) for name in (*named, "head_dim"))
    # SmolLM3 has layers that rotate nothing.
    return has_projections and bool(getattr(module, "use_rope", True))


def _hooked(layer: nn.Module, sites: frozenset[str]) -> list[Any]:
    """Register the hooks of one layer, and return their handles; see `_measure`."""
    tables: list[Tensor] = []
    head_dim = int(layer.head_dim)  # type: ignore[arg-type]

    def take_tables(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        cos_BTK, sin_BTK = kwargs["position_embeddings"]
        tables[:] = [cos_BTK, sin_BTK]
        nothing = (torch.ones_like(cos_BTK), torch.zeros_like(sin_BTK))
        return args, kwargs | {"position_embeddings": nothing}

    def turn(module: Any, args: Any, x: Tensor) -> Tensor:
        # As `_measure` finds, some norms return [B, H, T, K].
        if x.ndim == 4 and x.shape[1] != tables[0].shape[1] == x.shape[2]:
            module.is_heads_first = True
        if getattr(module, "is_heads_first", False):
            x_BTHK = x.transpose(1, 2).contiguous()
            return _turned(x_BTHK, head_dim, tables).transpose(1, 2)
        return _turned(x, head_dim, tables)

    def turn_back(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (_turned(args[0], head_dim, tables, inverse=True),)

    handles: list[Any] = [layer.register_forward_pre_hook(take_tables, with_kwargs=True)]
    for site in sites & {"q", "k", "v"}:
        # Queries and keys are rotated behind their norm.
        last = getattr(layer, f"{site}_norm", None) or getattr(layer, f"{site}_proj")
        handles.append(last.register_forward_hook(turn))
    if "o" in sites:
        o_proj: nn.Module = layer.get_submodule("o_proj")
        handles.append(o_proj.register_forward_pre_hook(turn_back))

    return handles


def _turned(x: Tensor, head_dim: int, tables: list[Tensor], *, inverse: bool = False) -> Tensor:
    """Return x, [B, T, H, K] or [B, T, H K], with the first features of its heads turned."""
    x_BTHK = x.view(*x.shape[:2], -1, head_dim)
    # Their tables have the angle of a pair twice.
    cos_BTF, sin_BTF = (table.chunk(2, dim=-1)[0] for table in tables)
    return rotate(x_BTHK, cos_BTF, sin_BTF, inverse=inverse).view(x.shape)
