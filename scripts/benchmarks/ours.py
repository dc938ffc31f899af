"""The bench's only use of internals of the project that it measures, as their names may change.

torch is imported only where needed: the memory of preparation is measured without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from rope_exp.config.run import RunConfig
from rope_exp.data import prepare as preparation
from rope_exp.data.tokenizer import END_OF_TEXT, load_tokenizer
from rope_exp.model.count import num_parameters
from rope_exp.plan import costs
from rope_exp.plan.compose import run_config
from rope_exp.plan.resolve import resolve

if TYPE_CHECKING:
    from torch import Tensor

    from rope_exp.model.decoder import Decoder

Spec = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parents[2]
VARIANTS = sorted(path.stem for path in (REPOSITORY / "configs" / "pe").glob("*.yaml"))


def settled(words: Sequence[str]) -> RunConfig:
    """Return the config of a command line, as it trains on this machine."""
    return resolve(run_config(list(words)))


def spec_of(words: Sequence[str]) -> Spec:
    """Prepare the corpus of a command line; return an arm's settings to train on or prepare it."""
    config = settled(words)
    train = config.train
    prepared = preparation.prepare(config.data, config.tokenizer, seq_len=train.seq_len)

    return {
        "python": sys.executable,
        "tree": str(REPOSITORY),
        "words": list(words),
        # Under the names of LlamaConfig.
        "model": asdict(config.model),
        "vocab_size": prepared.vocab_size,
        "batch": train.global_batch_size,
        "micro": train.micro_batch_size or train.global_batch_size,
        "seq_len": train.seq_len,
        "tokens_per_step": train.tokens_per_step,
        "bf16": train.precision == "bf16",
        "compile": train.compile,
        "device": config.launch.device,
        "tokens": str(prepared.folder / "train.bin"),
        "dtype": "<u4" if prepared.vocab_size > 2**16 else "<u2",
        "tokenizer": str(prepared.tokenizer_file),
        "corpus_bytes": sum(prepared.corpus["text_bytes"].values()),
        "corpus_tokens": sum(prepared.corpus["tokens"].values()),
    }


def prepare_with(words: Sequence[str], tokenizer_file: str) -> None:
    """Prepare a corpus as a run does, but with an existing tokenizer."""
    config = settled(words)
    tokenizer = load_tokenizer(tokenizer_file)
    built = mock.Mock(return_value=(tokenizer, tokenizer.get_vocab()[END_OF_TEXT]))
    with mock.patch.object(preparation, "build_tokenizer", built):
        preparation.prepare(config.data, config.tokenizer)


def texts(words: Sequence[str]) -> list[str]:
    """Return every document of a corpus."""
    corpus = preparation.open_corpus(settled(words).data)
    return list(chain.from_iterable(map(corpus.read, corpus.splits.values())))


def cost(spec: Spec) -> dict[str, int]:
    """Return the parameters of a model, and its operations per training token."""
    config = settled(spec["words"])
    return {
        "params": num_parameters(config.architecture(spec["vocab_size"])),
        "flops_per_token": costs.flops_per_token(config, spec["vocab_size"]),
    }


def decoder(config: RunConfig, vocab_size: int) -> Decoder:
    """Build the model of a config, initialised from seed 0, on the CPU, not compiled."""
    from rope_exp.model.decoder import Decoder

    model = Decoder(config.architecture(vocab_size))
    model.initialise(0)
    return model


def exact_logits(model: Decoder, ids_BT: Tensor) -> Tensor:
    """Return logits in float64, by torch's own attention; the model stays in float64 afterwards."""
    with mock.patch("rope_exp.model.attention.kernel.MAX_WRITTEN_OUT", 0):
        logits_BTV: Tensor = model.double()(ids_BT)
    return logits_BTV


class Learner:
    """A run's model and optimizer, in a process set up as a run's, and the shortest step."""

    def __init__(self, config: RunConfig, vocab_size: int) -> None:
        import torch

        from rope_exp.training.optim import build_optimizer
        from rope_exp.training.worker import set_up_process

        set_up_process(config)
        device = config.launch.device
        bf16 = config.train.precision == "bf16"
        self.autocast = torch.autocast(device, torch.bfloat16, enabled=bf16)
        self.clip = partial(torch.nn.utils.clip_grad_norm_, max_norm=config.optim.grad_clip)
        self.model = decoder(config, vocab_size).to(device)
        if config.train.compile:
            self.model.compile_parts()
        self.optimizer = build_optimizer(self.model, config.optim)

    def loss(self, ids_BT: Tensor, num_tokens: int) -> Tensor:
        """Return the loss of windows of T + 1 tokens, in the run's precision, over `num_tokens`."""
        with self.autocast:
            nats: Tensor = self.model(ids_BT[:, :-1], ids_BT[:, 1:])
        return nats / num_tokens

    def step(self, micro_batches: Sequence[Tensor]) -> Tensor:
        """Take one step; return the last micro-batch's loss."""
        num_tokens = sum(ids_BT[:, 1:].numel() for ids_BT in micro_batches)
        for ids_BT in micro_batches:
            loss = self.loss(ids_BT, num_tokens)
            loss.backward()  # type: ignore[no-untyped-call]

        self.clip(self.model.parameters())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()
