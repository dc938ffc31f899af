"""Training of one cell with independent code: transformers' LlamaForCausalLM and Trainer.

The tokens, their order and the initial weights are ours; a variant is a patch of the attention.
"""

import time
from collections.abc import Iterable, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention, rotate_half

from rope_exp.config.architecture import Architecture
from rope_exp.config.run import RunConfig, differing_keys
from rope_exp.data.batches import Batch, chain_sha256
from rope_exp.data.generated import open_data
from rope_exp.data.sources import held_out_rows, training_batch
from rope_exp.model.decoder import Decoder, weights, weights_sha256
from rope_exp.run.provenance import machine_facts
from rope_exp.system.errors import ConfigError

# Keys that may depart from the defaults in a cell that is trained here. The Trainer and LLaMA, as
# called here, follow no other keys.
COVERED = (
    "seed",
    "pe.name",
    "pe.rotate",
    "pe.base",
    "model.hidden_size",
    "model.intermediate_size",
    "model.num_hidden_layers",
    "model.num_attention_heads",
    "model.num_key_value_heads",
    "model.rms_norm_eps",
    "model.tie_word_embeddings",
    "data.kind",
    "data.path",
    "data.subset",
    "data.revision",
    "data.text_column",
    "data.sample_by",
    "data.validation_split",
    "data.holdout_fraction",
    "data.max_tokens",
    "data.seed",
    "tokenizer",
    "optim.lr",
    "optim.betas",
    "optim.eps",
    "optim.weight_decay",
    "optim.grad_clip",
    "schedule.warmup_fraction",
    "schedule.final_fraction",
    "train.num_steps",
    "train.global_batch_size",
    "train.seq_len",
    "train.eval_sequences",
    "train.precision",
    "train.compile",
    "train.deterministic",
)


def check_covered(config: RunConfig) -> None:
    """Refuse a config if training here would ignore part of it.

    Raises:
        ConfigError: naming the first such key.
    """
    beyond = differing_keys(RunConfig().numeric, config.numeric, COVERED)
    if beyond:
        key, _, change = beyond[0].partition(": ")
        raise ConfigError(key, change.partition(" -> ")[2], "is not passed to the Trainer")
    if config.data.task is not None:
        raise ConfigError("data.kind", config.data.kind, "is generated; the Trainer reads text")


def rotated_attention(
    layer: LlamaAttention,
    sites: Sequence[str],
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return LlamaAttention's output with the rotation on `sites`, in transformers' arithmetic.

    Args:
        layer: with the projections.
        hidden_states: [B, T, D].
        position_embeddings: cosines and sines, [B, T, K].
    """
    cos_B1TK, sin_B1TK = (table.unsqueeze(1) for table in position_embeddings)
    places = hidden_states.shape[:-1]

    found = {}
    for site in ("q", "k", "v"):
        projected = getattr(layer, f"{site}_proj")(hidden_states)
        x_BHTK = projected.view(*places, -1, layer.head_dim).transpose(1, 2)
        if site in sites:
            x_BHTK = x_BHTK * cos_B1TK + _rotated_half(x_BHTK) * sin_B1TK
        found[site] = x_BHTK

    attend = ALL_ATTENTION_FUNCTIONS[layer.config._attn_implementation]
    o_BTHK, attention = attend(
        layer, *found.values(), attention_mask, scaling=layer.scaling, dropout=0.0
    )
    if "o" in sites:
        # Rotate by minus the angle.
        o_BHTK = o_BTHK.transpose(1, 2)
        o_BTHK = (o_BHTK * cos_B1TK - _rotated_half(o_BHTK) * sin_B1TK).transpose(1, 2)
    return layer.o_proj(o_BTHK.reshape(*places, -1)), attention


def _rotated_half(x_BHTK: Tensor) -> Tensor:
    rotated: Tensor = rotate_half(x_BHTK)  # type: ignore[no-untyped-call]
    return rotated


def patched_llama(architecture: Architecture) -> LlamaForCausalLM:
    """Return transformers' LLaMA of these sizes that rotates the sites of its variant."""
    sizes = architecture.model
    config = LlamaConfig(
        vocab_size=architecture.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        rms_norm_eps=sizes.rms_norm_eps,
        tie_word_embeddings=sizes.tie_word_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.pe.base},
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.forward = partial(rotated_attention, attention, architecture.pe.rotate)
    return model


def rows_of(batches: Iterable[Batch]) -> list[dict[str, Tensor]]:
    """Return rows for the Trainer, which counts `labels`; the model predicts `shift_labels`."""
    rows = []
    for batch in batches:
        ids_BT, target_BP = map(torch.as_tensor, (batch.ids_BT, batch.target_BP))
        for ids_T, target_T in zip(ids_BT, target_BP, strict=True):
            rows.append({"input_ids": ids_T, "labels": target_T, "shift_labels": target_T})
    return rows


class Reader:
    """Makes batches of rows for the Trainer, and hashes them in the order in which it asks.

    Attributes:
        order_sha256: of the batches so far, as in our records.
    """

    def __init__(self) -> None:
        self.order_sha256 = ""

    def __call__(self, rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the batch of these rows."""
        batch: dict[str, Tensor] = default_collate(rows)
        windows_BS = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], dim=1)
        self.order_sha256 = chain_sha256(self.order_sha256, windows_BS.numpy())
        return batch


def arguments(config: RunConfig, folder: str) -> TrainingArguments:
    """Return a cell's config as arguments of the Trainer."""
    train = config.train
    optim = config.optim
    schedule = config.schedule
    return TrainingArguments(
        output_dir=folder,
        seed=config.seed,
        use_cpu=True,
        bf16=train.precision == "bf16",
        max_steps=train.num_steps,
        per_device_train_batch_size=train.global_batch_size,
        per_device_eval_batch_size=train.global_batch_size,
        train_sampling_strategy="sequential",
        optim="adamw_torch_fused",
        learning_rate=optim.lr,
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        adam_epsilon=optim.eps,
        weight_decay=optim.weight_decay,
        max_grad_norm=optim.grad_clip,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": schedule.final_fraction},
        warmup_steps=round(schedule.warmup_fraction * train.num_steps),
        logging_steps=train.log_every,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def train_cell(config: RunConfig) -> dict[str, Any]:
    """Train a cell of a campaign with transformers' Trainer, and return its results.

    Raises:
        ConfigError: training here would ignore part of it (`check_covered`).
        DataError: there is no corpus.
    """
    check_covered(config)
    started = time.monotonic()
    torch.set_num_threads(1)
    data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    architecture = config.architecture(data.vocab_size)

    # Ours: the initial weights and the tokens.
    decoder = Decoder(architecture)
    decoder.initialise(config.seed)
    model = patched_llama(architecture)
    model.load_state_dict(weights(decoder))
    init_sha256 = weights_sha256(weights(model))
    batches = (training_batch(config, data, step + 1) for step in range(config.train.num_steps))

    reader = Reader()
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=arguments(config, folder),
            data_collator=reader,
            train_dataset=rows_of(batches),
            eval_dataset=rows_of([held_out_rows(config, data)]),
        )
        trainer.train()
        order_sha256 = reader.order_sha256
        loss = trainer.evaluate()["eval_loss"]

    logged = [row for row in trainer.state.log_history if "loss" in row]
    return {
        "val/loss": loss,
        "steps": trainer.state.global_step,
        "config_sha256": config.config_sha256,
        "init_sha256": init_sha256,
        "order_sha256": order_sha256,
        "curve": {"step": [row["step"] for row in logged], "loss": [row["loss"] for row in logged]},
        "env": machine_facts("cpu"),
        "wall_s": round(time.monotonic() - started, 1),
    }
