"""Export of a run's model as a folder that transformers loads: weights, tokenizer, code and card.

A model that transformers has already is exported as that: RoPE on q and k is LlamaForCausalLM (MLA:
DeepseekV3ForCausalLM), and no rotation at all SmolLM3ForCausalLM. Others come with their own code.
"""

import ast
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from rope_exp.config import Architecture, RunConfig
from rope_exp.decoder import Decoder, weights, weights_sha256
from rope_exp.errors import ConfigError, show
from rope_exp.export import modeling_rope_exp as ours
from rope_exp.files import make_folders, new_folder, try_lock
from rope_exp.folder import read_config, read_env, read_result
from rope_exp.identity import Refusal, affecting_values, refuse
from rope_exp.load import end_of_text, load_checkpoint
from rope_exp.position._encoding import Position
from rope_exp.prepare import vocab_size
from rope_exp.sections import PAIRS, PeConfig, SoftmaxConfig
from rope_exp.tables import without_tags
from rope_exp.version import __version__

Code = Literal["auto", "always"]
# The keys of a model that LlamaConfig has, too.
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
)


def export(
    run_dir: Path,
    out: Path,
    code: Code = "auto",
    step: int | None = None,
    *,
    trust_code: bool = False,
) -> str:
    """Write a run's model, tokenizer and card into a new folder.

    Args:
        run_dir: the run's folder.
        out: the new folder, which may exist if it is empty.
        code: auto: a class of transformers where one is the same model; always: our own code.
        step: a saved step; None: the newest checkpoint that verifies.
        trust_code: execute the code of a foreign run, as in `load_run`.
    Returns:
        The name of the model's class.
    Raises:
        ConfigError: `out` holds something, or the model cannot be exported or loaded.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("OUT", str(out), "holds something; name a new folder")
    if out.resolve().is_relative_to(run_dir.resolve()):
        raise ConfigError("OUT", str(out), "lies in the run's own folder, which is its record")
    decoder, tokenizer, step = load_checkpoint(run_dir, step, trust_code=trust_code)
    config = read_config(run_dir)
    end_id = end_of_text(run_dir, decoder)
    model = exported(decoder, code, end_id, max_position_embeddings=config.train.longest)
    name = type(model).__name__
    readme = card(run_dir, config, step, name, out.name, weights_sha256(weights(decoder)))

    # Written beside and renamed: after a kill, the same command finds no half of an export.
    out = out.resolve()
    needed_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    with _only_writer(out), new_folder(out, needed_bytes, "the export") as new:
        disable_progress_bar()
        model.save_pretrained(new)
        tokenizer_of(tokenizer, end_id, config).save_pretrained(new)
        if name.startswith("RopeExp"):
            write_code(new, config.pe)
        # transformers gives weights to their owner alone.
        for path in new.glob("*.safetensors"):
            path.chmod(0o644)
        (new / "README.md").write_text(readme, encoding="utf-8")
    return name


@contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    """Refuse a second export to a folder while the first one writes it."""
    make_folders(out.parent)
    place = out.with_name(f".{out.name}.lock")
    held = try_lock(place)
    if held is None:
        raise ConfigError("OUT", str(out), "another process exports to it; wait, or name another")
    with os.fdopen(held):
        try:
            yield
        finally:
            place.unlink(missing_ok=True)


def exported(
    decoder: Decoder, code: Code = "auto", end_id: int | None = None, **sizes: Any
) -> PreTrainedModel:
    """Return a decoder as a model of transformers, with the same weights, in eval mode.

    Args:
        decoder: the decoder, from whose architecture the class follows.
        code: auto: a class of transformers where one is the same model; always: our own code.
        end_id: the token that ends a document, begins the first, and pads; None: no token does.
        sizes: more keys of the model's config, such as max_position_embeddings.
    Raises:
        ConfigError: transformers has no such model, and our own code does not describe it.
    """
    architecture = decoder.architecture
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end_id)
    model = architecture.model
    keys: dict[str, Any] = {key: getattr(model, key) for key in SIZES} | ids | sizes
    keys |= {"vocab_size": architecture.vocab_size, "head_dim": model.features_per_head}
    made = None
    if code == "auto":
        made = _native(architecture, keys)
    if made is None:
        if architecture.num_outputs is not None:
            raise ConfigError("train.objective", "regression", "has no logits to export")
        end = "and cannot be exported to transformers"
        refusals = _refusals(architecture)
        refuse(architecture, (Refusal(key, f"{why}, {end}") for key, why in refusals))
        # Refuse a user's file whose imports cannot be copied before the model is made.
        copied(architecture.pe.source or "", architecture.pe)
        model_class = ours.RopeExpForCausalLM if architecture.causal else ours.RopeExpForMaskedLM
        made = model_class(ours.RopeExpConfig(**keys, **_positions(architecture)))
        for name, module in decoder.named_modules():
            if isinstance(module, Position):
                parent, _, child = name.rpartition(".")
                setattr(made.get_submodule(parent), child, deepcopy(module))
    made.load_state_dict(weights(decoder))
    return made.eval()


def _refusals(architecture: Architecture) -> Iterator[Refusal]:
    """Yield what our own code for transformers does not describe."""
    model = architecture.model
    if architecture.attn.kind != "softmax":
        yield Refusal("attn.kind", "has no class with these sites")
    if model.token_shift:
        yield Refusal("model.token_shift", "keeps an input in its cache")
    if architecture.attn != SoftmaxConfig():
        yield Refusal("attn.sink", "has no class")
    if model.window_layers is not None:
        yield Refusal("model.window_layers", "has windows by layer")
    if model.hidden_size % model.num_attention_heads:
        reason = f"does not divide {model.hidden_size} features"
        yield Refusal("model.num_attention_heads", reason)
    if architecture.pe.precision == "bf16":
        yield Refusal("pe.precision", "is for a study of noise")


def _native(architecture: Architecture, keys: dict[str, Any]) -> PreTrainedModel | None:
    """Return transformers' own class of this model, without its weights, if it has one."""
    model = architecture.model
    attn: Any = architecture.attn
    pe = architecture.pe
    has_other_keys = replace(pe, name="any") != PeConfig("any", rotate=pe.rotate, base=pe.base)
    if has_other_keys or not architecture.causal or model.window or model.token_shift:
        return None

    rope = {"rope_type": "default", "rope_theta": pe.base}
    is_qk = pe.rotate == ("q", "k")
    if attn.kind == "latent" and is_qk and not attn.value_rope:
        latent = {
            "head_dim": attn.rope_dim,
            "q_lora_rank": attn.q_rank,
            "kv_lora_rank": attn.kv_rank,
            "qk_nope_head_dim": attn.nope_dim,
            "qk_rope_head_dim": attn.rope_dim,
            "v_head_dim": attn.value_dim,
            "rope_interleave": False,
            "first_k_dense_replace": model.num_hidden_layers,
        }
        deepseek = transformers.DeepseekV3Config(**keys | latent, rope_parameters=rope)
        return transformers.DeepseekV3ForCausalLM(deepseek)

    is_usual = model.hidden_size == model.num_attention_heads * model.features_per_head
    if attn != SoftmaxConfig() or model.qk_norm or not is_usual:
        return None
    if is_qk:
        llama = transformers.LlamaConfig(**keys, rope_parameters=rope)
        return transformers.LlamaForCausalLM(llama)
    if not pe.rotate:
        rotates = [0] * model.num_hidden_layers
        smollm = transformers.SmolLM3Config(**keys, no_rope_layers=rotates, rope_parameters=rope)
        return transformers.SmolLM3ForCausalLM(smollm)
    return None


def _positions(architecture: Architecture) -> dict[str, Any]:
    """Return the keys of RopeExpConfig that LlamaConfig lacks."""
    model = architecture.model
    pe = architecture.pe
    num_layers = model.num_hidden_layers
    rotations = []
    for pair in PAIRS:
        rotation = {
            "sites": pair,
            "base": pe.base_of(pair),
            "features": pe.num_features(model.features_per_head, pair),
            "learned": pe.learned.get(pair),
        }
        rotations.append(rotation)
    return {
        "rotate": ["".join(pe.sites_of(layer)) for layer in range(num_layers)],
        "rotations": rotations,
        "rope_start": pe.start,
        "rope_learned": pe.trainable,
        "rope_shape": pe.trained_shape(num_layers, model.num_key_value_heads),
        "sinusoid_scale": pe.sinusoid_scale,
        "num_positions": architecture.num_positions,
        "qk_norm": model.qk_norm,
        "window": model.window,
        "is_causal": architecture.causal,
    }


def tokenizer_of(tokenizer: Tokenizer, end_id: int, config: RunConfig) -> PreTrainedTokenizerFast:
    """Return the tokenizer as transformers has it: plain text, padded on the left."""
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), tokenizer.id_to_token(end_id))
    if not config.causal:
        if vocab_size(tokenizer) != tokenizer.get_vocab_size():
            reason = "has holes among its ids, so that its mask cannot be exported"
            raise ConfigError("tokenizer.path", config.tokenizer.path, reason)
        # Its id is the first that the tokenizer has not.
        special["mask_token"] = "<|mask|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        # As in training, a text holds no special token, but for a mask that a user writes.
        split_special_tokens=config.causal,
        model_max_length=config.train.longest,
        **special,
    )


# The copies of modules, by the names under which a file may import them.
COPIES = {
    r"rope_exp(\.position\._encoding|\.encoding|\.model\.position)?": "encoding_rope_exp",
    r"rope_exp(\.model)?\.rope": "rope_rope_exp",
}


def write_code(out: Path, pe: PeConfig) -> None:
    """Write what the copy of modeling_rope_exp.py imports, and its imports, into a folder."""
    choices = {"added_positions": pe.input, "score_bias": pe.bias}
    acting = {name: choice for name, choice in choices.items() if choice != "none"}
    files = {"modeling": "export/modeling_rope_exp", "rope": "rope"}
    files |= {choice.strip("_"): f"position/{choice}" for choice in ("_encoding", *acting.values())}
    root = Path(__file__).parents[1]
    texts = {name: (root / f"{file}.py").read_text("utf-8") for name, file in files.items()}

    lines = []
    makers = []
    for name, choice in acting.items():
        lines.append(f"from .{choice}_rope_exp import make as make_{name}")
        makers.append(f'"{name}": make_{name}')
    if pe.code is not None:
        texts["own"] = str(pe.source)
        lines.append(f"from .own_rope_exp import {pe.code.partition('.')[2]} as Own")
        makers.append('"own": lambda _, sizes: Own.placed(sizes)')
    lines.append(f"MAKERS = {{{', '.join(makers)}}}")
    texts["modeling"], changed = re.subn(r"(?m)^MAKERS: .*", "\n".join(lines), texts["modeling"])
    assert changed == 1

    # An encoding of ours reads the same keys of either config.
    configs = "rope_exp.sections import PeConfig", "transformers import LlamaConfig as PeConfig"
    for name, text in texts.items():
        text = copied(text.replace(*configs), pe)
        (out / f"{name}_rope_exp.py").write_text(text, encoding="utf-8")


def copied(source: str, pe: PeConfig) -> str:
    """Return a file's text with its imports of rope_exp changed to the copies', or refuse it."""
    for module, copy in COPIES.items():
        source = re.sub(rf"\bfrom\s+{module}(?=\s+import\b)", f"from .{copy}", source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        has_other = re.search(r"\brope_exp\b", ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and node.module == "encoding_rope_exp":
            has_other = {alias.name for alias in node.names} - {"Position", "ScoreBias", "Sizes"}
        if has_other:
            reason = f"has `{ast.unparse(node)}`, and cannot be exported to transformers"
            raise ConfigError("pe.code", pe.code, reason)
    return source


CARD = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags: [rope, position-encoding, rope_exp]
---

# {title}

Trained by rope_exp, which compares where in attention a rotary position embedding acts. The table \
has every setting of the model that departs from its default. It is one seed: its loss alone does \
not show that its variant is better or worse than another.

```python
from transformers import {auto}, PreTrainedTokenizerFast

model = {load}
tokenizer = PreTrainedTokenizerFast.from_pretrained("{place}")
```

| | |
|---|---|
{table}
"""


def loading(name: str, place: str) -> str:
    """Return the Python that loads a model of this class from a folder or the hub."""
    auto = "AutoModelForMaskedLM" if "Masked" in name else "AutoModelForCausalLM"
    trust = ", trust_remote_code=True" if name.startswith("RopeExp") else ""
    return f'{auto}.from_pretrained("{place}"{trust})'


def card(run_dir: Path, config: RunConfig, step: int, name: str, place: str, sha256: str) -> str:
    """Return the README.md of an exported model.

    Args:
        run_dir: the run's folder.
        config: the run's config.
        step: the step of the weights.
        name: the name of the model's class.
        place: the folder's name, from which the example loads it.
        sha256: the hash of the weights.
    """
    result = read_result(run_dir) or {}
    env = read_env(run_dir)
    loss = f"not measured at step {step:,}"
    if step == result.get("steps") and result["val/loss"] is not None:
        loss = f"{result['val/loss']:.4f} {config.unit}"
    rows = {
        "validation loss": loss,
        "corpus": config.data.name,
        "steps": f"{step:,} of {config.train.num_steps:,}, seed {config.seed}",
        "parameters": f"{env.get('params', 0):,}",
        # An installed copy has no commit.
        "code": f"rope_exp {__version__}, commit {(env.get('git') or {}).get('commit')}",
        "weights": sha256,
        "notes": "; ".join(env.get("marks", ())) or "none",
    }
    for section in ("pe", "attn", "model"):
        values = affecting_values(getattr(config, section), departing=True)
        rows |= {f"{section}.{key}": show(value) for key, value in values.items()}
    hashes = ("config_sha256", "init_sha256", "data_sha256", "order_sha256")
    rows |= {key: result[key] for key in hashes if key in result}
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    load = loading(name, place)
    return CARD.format(
        pipeline="text-generation" if config.causal else "fill-mask",
        title=f"{config.pe.name}, {config.data.name}, seed {config.seed}",
        auto=load.partition(".")[0],
        load=load,
        place=place,
        table=without_tags(table),
    )
