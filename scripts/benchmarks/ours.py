"""What the bench takes from the project that it measures, where that may change its names.

torch is imported where it is needed: the memory of preparation is measured without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from rope_exp.config import costs
from rope_exp.config.compose import run_config
from rope_exp.config.resolve import resolve
from rope_exp.config.run import RunConfig
from rope_exp.data import prepare as preparation
from rope_exp.data.prepare import open_corpus
from rope_exp.data.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rope_exp.model.decoder import Decoder

Spec = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parents[2]
FOUR = ("nope", "qk_rope", "vo_rope", "qkvo_rope")
NINE = (*FOUR, "q_rope", "k_rope", "v_rope", "o_rope", "qkv_rope")

# What a Llama of transformers and a GPT of litgpt need to know of a model.
ATTENTION = ("num_attention_heads", "num_key_value_heads")
WIDTHS = ("hidden_size", "intermediate_size", "num_hidden_layers")
SHAPE = (*WIDTHS, *ATTENTION, "rms_norm_eps", "tie_word_embeddings")


def settled(words: Sequence[str]) -> RunConfig:
    """Return the config of a command line, as it trains on this machine."""
    return resolve(run_config(list(words)))


def training_spec(words: Sequence[str]) -> Spec:
    """Prepare the corpus of a command line, and return what an arm needs in order to train it."""
    config = settled(words)
    train = config.train
    corpus = preparation.prepare(config.data, config.tokenizer, seq_len=train.seq_len)

    return {
        "words": list(words),
        "model": {key: getattr(config.model, key) for key in SHAPE},
        "vocab_size": corpus.vocab_size,
        "batch": train.global_batch_size,
        "micro": train.micro_batch_size or train.global_batch_size,
        "seq_len": train.seq_len,
        "bf16": train.precision == "bf16",
        "compile": train.compile,
        "device": config.launch.device,
        "tokens": str(corpus.folder / "train.bin"),
        "dtype": "<u4" if corpus.vocab_size > 2**16 else "<u2",
        "tokens_per_step": train.global_batch_size * train.seq_len,
    }


def preparation_spec(words: Sequence[str]) -> Spec:
    """Prepare a corpus, and return what an arm needs in order to do so again."""
    config = settled(words)
    prepared = preparation.prepare(config.data, config.tokenizer)
    return {
        "words": list(words),
        "tokenizer": str(prepared.tokenizer_file),
        "end_id": prepared.corpus["end_id"],
        "text_bytes": sum(prepared.corpus["text_bytes"].values()),
        "tokens_per_step": sum(prepared.corpus["tokens"].values()),
    }


def prepare_with(words: Sequence[str], tokenizer_file: str, end_id: int, copies: int) -> None:
    """Prepare copies of a corpus as a run does, but with a tokenizer that is there already."""
    config = settled(words)
    corpus = open_corpus(config.data)
    read = partial(_repeated, corpus.read, copies)
    with mock.patch.multiple(
        preparation,
        build_tokenizer=mock.Mock(return_value=(load_tokenizer(tokenizer_file), end_id)),
        open_corpus=mock.Mock(return_value=replace(corpus, read=read)),
    ):
        preparation.prepare(config.data, config.tokenizer)


def _repeated(read: Callable[[Any], Iterable[str]], copies: int, split: Any) -> Iterator[str]:
    for _ in range(copies):
        yield from read(split)


def texts(words: Sequence[str]) -> Iterator[str]:
    """Yield every document of a corpus that is not empty."""
    corpus = open_corpus(settled(words).data)
    for split in corpus.splits:
        for _, text in corpus.documents(split):
            yield text


def cost(config: RunConfig, vocab_size: int) -> dict[str, int]:
    """Return the parameters of a config's model, and its operations a training token."""
    return {
        "params": costs.num_parameters(config.architecture(vocab_size)),
        "flops_per_token": costs.flops_per_token(config, vocab_size),
    }


def decoder(config: RunConfig, vocab_size: int) -> Decoder:
    """Build the model of a config, initialised from seed 0, on the CPU, not compiled."""
    from rope_exp.model.decoder import Decoder

    model = Decoder(config.architecture(vocab_size))
    model.initialise(0)
    return model


def exact_nats(model: Decoder, ids_BT: Tensor) -> Tensor:
    """Return the summed loss in float64, by torch's own attention and cross-entropy."""
    from torch.nn import functional as F

    from rope_exp.model import attention

    with mock.patch.object(attention, "MAX_WRITTEN_OUT", 0):
        logits_BTV = model.double()(ids_BT[:, :-1])
    return F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="sum")


def learner(config: RunConfig, vocab_size: int) -> tuple[Decoder, torch.optim.Optimizer]:
    """Set this process up as a run does; build the model on its device, and its optimizer."""
    from rope_exp.training.optim import build_optimizer
    from rope_exp.training.worker import set_up_process

    set_up_process(config)
    model = decoder(config, vocab_size)
    model.to(config.launch.device)
    if config.train.compile:
        model.compile_parts()

    return model, build_optimizer(model.parameters(), config.optim)


def mean_nats(config: RunConfig, model: Decoder, ids_BT: Tensor, num_tokens: int) -> Tensor:
    """Return the loss of windows of T + 1 tokens, in the config's precision, over `num_tokens`."""
    import torch

    bf16 = config.train.precision == "bf16"
    with torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=bf16):
        nats: Tensor = model(ids_BT[:, :-1], ids_BT[:, 1:])
    return nats / num_tokens


def train_step(
    config: RunConfig,
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[Tensor],
) -> Tensor:
    """Make one update, in the fewest lines that do; return the last micro-batch's loss."""
    import torch

    num_tokens = sum(ids_BT[:, 1:].numel() for ids_BT in micro_batches)
    for ids_BT in micro_batches:
        loss = mean_nats(config, model, ids_BT, num_tokens)
        loss.backward()  # type: ignore[no-untyped-call]

    torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()
