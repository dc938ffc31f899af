"""Cost of decoding one token after many others: time, and memory of the cache."""

import shlex
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import ours
from benchmarks.setting import Bench
from rope_exp.config.kind import Kind
from rope_exp.evaluation.generate import PART
from rope_exp.model.cache import Cache
from rope_exp.model.count import kept
from rope_exp.model.decoder import Decoder
from rope_exp.system.console import log
from rope_exp.system.errors import ConfigError

CONTEXTS = (256, 1024, 4096, 16384)
# Decoded in one turn.
NUM_TOKENS = 8


@dataclass
class Arm:
    """A model of random weights, and its cache."""

    decoder: Decoder
    attn: Kind
    cache: Cache

    def take(self, ids_BT: Tensor) -> None:
        """Append these ids, all at once."""
        self.decoder(ids_BT, cache=self.cache)


@torch.inference_mode()
def decode(bench: Bench, model: str) -> dict[str, Any]:
    """Time a decoded token of each --arm after contexts of growing length, one text at a time.

    In float32, as `generate` decodes.

    Returns:
        By arm: numbers cached per token and layer, and those that do not grow; and by context the
        median seconds per token, and the bytes kept.
    """
    words = bench.options.arms
    if not words:
        raise ConfigError("--arm", ..., "say at least one, such as --arm attn=mla")
    arms = {each: _arm(bench, model, each) for each in words}
    found: dict[str, dict[str, Any]] = {}
    for each, arm in arms.items():
        sizes = arm.decoder.architecture
        cached, state = kept(sizes.attn, sizes.model, sizes.pe)
        found[each] = {
            "cached": cached,
            "state": state,
            "token_s": [],
            "kept_bytes": [],
        }

    ids_1T = torch.zeros(1, PART, dtype=torch.int64, device=bench.device)
    for context in CONTEXTS:
        log(f"  after {context:,} tokens")
        seconds: dict[str, list[float]] = {each: [] for each in arms}
        for each, arm in arms.items():
            while arm.cache.length < context:
                arm.take(ids_1T[:, : min(PART, context - arm.cache.length)])
            left = [[*layer.rows.values(), *layer.states.values()] for layer in arm.cache.layers]
            size = sum(tensor.nbytes for layer in left for tensor in layer)
            found[each]["kept_bytes"].append(size)
        for _ in range(bench.rounds):
            for each, arm in arms.items():
                seconds[each].append(_time(bench, arm, ids_1T[:, :1]))
        for each, own in seconds.items():
            found[each]["token_s"].append(statistics.median(own))
    return {"contexts": CONTEXTS, "arms": found}


def _arm(bench: Bench, model: str, words: str) -> Arm:
    config = ours.settled(bench.words(model, *shlex.split(words)))
    vocab_size = config.tokenizer.known_vocab_size or 2048
    decoder = ours.decoder(config, vocab_size).to(bench.device).eval()
    return Arm(decoder, config.attn, decoder.new_cache())


def _time(bench: Bench, arm: Arm, ids_1T: Tensor) -> float:
    """Return the mean seconds per token, over several."""
    if bench.device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(NUM_TOKENS):
        arm.take(ids_1T)
    if bench.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / NUM_TOKENS
