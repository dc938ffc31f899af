"""The card of an exported model: the README.md that the hub shows."""

from pathlib import Path

from rope_exp import __version__
from rope_exp.config import RunConfig
from rope_exp.errors import show
from rope_exp.folder import read_env, read_result
from rope_exp.identity import numeric_values
from rope_exp.report import bits_per_byte, perplexity

CARD = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags: [rope, position-encoding, rope_exp]
---

# {title}

A decoder with {params:,} parameters, trained by rope_exp to compare where in attention a rotary \
position embedding acts.

## Use

```python
from transformers import {auto}, PreTrainedTokenizerFast

model = {load}
tokenizer = PreTrainedTokenizerFast.from_pretrained("{place}")
{example}```

## Model

Rotated: {rotated}; R_m rotates the f-th pair of n features by m base^(-2f/n). Before training, in \
float64: the output of attention {law}. The table has every setting that departs from its default.

## Training

| | |
|---|---|
{table}

## Limits

This is a result to be examined, not a model to be used. It is one seed, trained for {step:,} of \
{steps:,} steps: its loss alone does not show that its variant is better or worse than another.

Reference: Su Jianlin (2025), [Transformer升级之路：19、第二类旋转位置编码]\
(https://spaces.ac.cn/archives/10862).
"""

GENERATION = """\
batch = tokenizer(["A text", "Another"], return_tensors="pt", padding=True)
texts = tokenizer.batch_decode(model.generate(**batch, max_new_tokens=32))
"""
EQUATIONS = {
    "q": "q_i = R_i W_q x_i",
    "k": "k_j = R_j W_k x_j",
    "v": "v_j = R_j W_v x_j",
    "o": "o_i = R_i^T sum_j a_ij v_j",
}


def loading(name: str, place: str) -> str:
    """Return the Python that loads a model of this class from a folder or the hub."""
    auto = "AutoModelForMaskedLM" if "Masked" in name else "AutoModelForCausalLM"
    trust = ", trust_remote_code=True" if name.startswith("RopeExp") else ""
    return f'{auto}.from_pretrained("{place}"{trust})'


def card(
    run_dir: Path, config: RunConfig, step: int, name: str, place: str, weights_sha256: str
) -> str:
    """Return the card of a run's model, of class `name`, at a step, loaded from `place`."""
    result = read_result(run_dir) or {}
    env = read_env(run_dir)
    equations = [EQUATIONS[site] for site in config.pe.rotate]
    measured = env.get("certificate", {}).get("measured")
    laws = {None: "was not measured", "invariant": "does not depend on where positions begin"}

    loss = f"not measured at step {step:,}"
    nats = result.get("val/loss")
    if step == result.get("steps") and nats is not None:
        loss = f"{nats:.4f} {config.data.unit}"
        if bits := bits_per_byte(nats, config, env):
            loss += f", perplexity {perplexity(nats):.2f}, about {bits:.3f} bits per byte"
    departing = {
        f"{section}.{key}": show(value)
        for section in ("pe", "attn", "model")
        for key, value in numeric_values(getattr(config, section), departing=True).items()
    }
    hashes = ("config_sha256", "init_sha256", "data_sha256", "order_sha256")
    facts = {
        "validation loss": loss,
        "corpus": config.data.name,
        "steps": f"{step:,} of {config.train.num_steps:,}, seed {config.seed}",
        **departing,
        # An installed copy has no commit.
        "code": f"rope_exp {__version__}, commit {(env.get('git') or {}).get('commit')}",
        "weights": weights_sha256,
        "notes": "; ".join(env.get("marks", ())) or "none",
        **{key: result[key] for key in hashes if key in result},
    }
    load = loading(name, place)
    return CARD.format(
        pipeline="text-generation" if config.causal else "fill-mask",
        auto=load.partition(".")[0],
        example=GENERATION if config.causal else "",
        title=f"{config.pe.name}, {config.data.name}, seed {config.seed}",
        params=int(env.get("params", 0)),
        step=step,
        steps=config.train.num_steps,
        load=load,
        place=place,
        rotated="; ".join(equations) or "nothing",
        law=laws.get(measured, f"depends on positions as `{measured}`"),
        table="\n".join(f"| {key} | {fact} |" for key, fact in facts.items()),
    )
