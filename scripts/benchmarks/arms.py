"""One contender of a race, in its own process: race.py starts it, and sends its settings.

For every number N that it receives it takes N steps, and answers with the mean time of a step and
the peak memory of the process. All arms that train use the same shape, batch, length, precision and
windows of the same corpus, with AdamW and clipping. Each arm does its own imports: litgpt runs in
an environment without rope_exp, and the memory of preparation is measured without torch.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

NUM_WINDOWS = 512  # of the corpus, which the arms train on again and again
NEVER = 10**9  # a step that no race reaches

# Settings of the peers; ours come from its config. Those that cost no time, such as the learning
# rate, are the peers' defaults.
WEIGHT_DECAY = 0.1
CLIP = 1.0


class Gate:
    """Lets the requested number of steps pass, and times them."""

    def __init__(self, race: Connection) -> None:
        self.race = race
        self.asked = 0
        self.left = 0
        self.since = 0.0

    def __call__(self, *_: object) -> None:
        """Wait here before every step; end the process when no more are requested."""
        if self.left == 0:
            peak_bytes = _peak_bytes()
            if self.asked:
                self.race.send(((time.perf_counter() - self.since) / self.asked, peak_bytes))
            try:
                self.asked = self.race.recv()
            except EOFError:
                # This leaves any loop that called the gate.
                os._exit(0)
            self.left = self.asked
            self.since = time.perf_counter()
        self.left -= 1


def _peak_bytes() -> int:
    """Return the peak memory of the GPU, after its work, if it is used; else of the process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())

    # getrusage would report the parent's peak, from before the child's program was loaded.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def windows(spec: SimpleNamespace) -> Tensor:
    """Read the ids to train on, [N, T + 1]."""
    import torch

    length = spec.seq_len + 1
    ids = np.fromfile(spec.tokens, spec.dtype, max(NUM_WINDOWS, spec.batch) * length)
    whole = ids[: len(ids) // length * length]
    return torch.from_numpy(whole.astype(np.int64)).view(-1, length)


def batches(spec: SimpleNamespace) -> Iterator[tuple[Tensor, ...]]:
    """Yield each step's micro-batches, [b, T + 1] each, forever."""
    import torch

    ids_NT = windows(spec)
    for start in itertools.cycle(range(0, len(ids_NT) - spec.batch + 1, spec.batch)):
        ids_BT = ids_NT[start : start + spec.batch]
        if spec.device == "cuda":
            ids_BT = ids_BT.pin_memory()
        yield torch.split(ids_BT.to(spec.device, non_blocking=True), spec.micro)


def ours(spec: SimpleNamespace, gate: Gate) -> None:
    """Train by a checkout's train.py, with the record, the hashes and the checks of every step.

    The checkout only needs its command line and an optimizer of torch's.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    periods = [f"train.{key}={NEVER}" for key in ("num_steps", "eval_every", "save_every")]
    sys.argv = ["train.py", *spec.words, *periods, "launch=inline", f"run.dir={spec.folder}/run"]
    gate()
    register_optimizer_step_post_hook(gate)
    runpy.run_path(f"{spec.tree}/train.py", run_name="__main__")


def bare(spec: SimpleNamespace, gate: Gate) -> None:
    """Train the same model in the shortest loop, to measure the cost of the harness."""
    from benchmarks.ours import Learner, settled

    learner = Learner(settled(spec.words), spec.vocab_size)
    for micro_batches in batches(spec):
        gate()
        learner.step(micro_batches)


def trainer(spec: SimpleNamespace, gate: Gate) -> None:
    """Train transformers' LlamaForCausalLM by its Trainer."""
    import transformers
    from torch.optim.optimizer import register_optimizer_step_post_hook

    shape = transformers.LlamaConfig(vocab_size=spec.vocab_size, use_cache=False, **spec.model)
    on_gpu = spec.device == "cuda"
    arguments = transformers.TrainingArguments(
        output_dir=str(spec.folder),
        use_cpu=not on_gpu,
        bf16=spec.bf16,
        torch_compile=spec.compile,
        # torch_compile would switch it on otherwise.
        tf32=False if on_gpu else None,
        per_device_train_batch_size=spec.micro,
        gradient_accumulation_steps=spec.batch // spec.micro,
        max_steps=NEVER,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP,
        optim="adamw_torch_fused",
        logging_steps=10,
        save_strategy="no",
        disable_tqdm=True,
    )
    texts = [{"input_ids": ids_T, "labels": ids_T} for ids_T in windows(spec)[:, :-1]]
    model = transformers.LlamaForCausalLM(shape)
    gate()
    register_optimizer_step_post_hook(gate)
    transformers.Trainer(model, arguments, train_dataset=texts).train()


def litgpt(spec: SimpleNamespace, gate: Gate) -> None:
    """Train litgpt's GPT, compiled, under Fabric and its chunked loss, as its `pretrain` does."""
    import lightning
    import torch
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    precision = "bf16-mixed" if spec.bf16 else "32-true"
    fabric = lightning.Fabric(accelerator=spec.device, devices=1, precision=precision)
    fabric.launch()
    config = Config(
        block_size=spec.seq_len,
        vocab_size=spec.vocab_size,
        padded_vocab_size=spec.vocab_size,
        n_layer=spec.model["num_hidden_layers"],
        n_head=spec.model["num_attention_heads"],
        n_query_groups=spec.model["num_key_value_heads"],
        n_embd=spec.model["hidden_size"],
        intermediate_size=spec.model["intermediate_size"],
        norm_class_name="RMSNorm",
        norm_eps=spec.model["rms_norm_eps"],
        mlp_class_name="LLaMAMLP",
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
    )
    with fabric.init_module():
        model = GPT(config)
    if spec.model["tie_word_embeddings"]:
        model.lm_head.weight = model.transformer.wte.weight
    wrapped = fabric.setup(torch.compile(model))
    fused = spec.device == "cuda"
    adamw = torch.optim.AdamW(model.parameters(), weight_decay=WEIGHT_DECAY, fused=fused)
    optimizer = fabric.setup_optimizers(adamw)

    for micro_batches in batches(spec):
        gate()
        for number, ids_BT in enumerate(micro_batches, start=1):
            with fabric.no_backward_sync(wrapped, enabled=number < len(micro_batches)):
                logits_BTV = wrapped(ids_BT[:, :-1].contiguous())
                loss = chunked_cross_entropy(logits_BTV, ids_BT[:, 1:].contiguous())
                fabric.backward(loss / len(micro_batches))
        fabric.clip_gradients(wrapped, optimizer, max_norm=CLIP)
        optimizer.step()
        optimizer.zero_grad()


def prepare(spec: SimpleNamespace, gate: Gate) -> None:
    """Prepare a corpus anew at every step."""
    from benchmarks.ours import prepare_with

    for number in itertools.count():
        gate()
        prepare_with([*spec.words, f"data.cache_dir={spec.folder}/{number}"], spec.tokenizer)


def encode(spec: SimpleNamespace, gate: Gate) -> None:
    """Encode texts in memory by plain tokenizers, a thousand per call: faster than one call."""
    from benchmarks.ours import texts
    from rope_exp.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(spec.tokenizer)
    all_texts = texts(spec.words)
    while True:
        gate()
        for first in range(0, len(all_texts), 1000):
            for encoding in tokenizer.encode_batch_fast(all_texts[first : first + 1000]):
                _ = encoding.ids


ARMS: dict[str, Callable[[SimpleNamespace, Gate], None]] = {
    "ours": ours,
    "bare": bare,
    "Trainer": trainer,
    "litgpt": litgpt,
    "prepare": prepare,
    "encode": encode,
}


def main() -> None:
    """Run the arm that the race names; the argument is the descriptor of its open connection."""
    race = Connection(int(sys.argv[1]))
    spec = SimpleNamespace(**race.recv())
    ARMS[spec.arm](spec, Gate(race))


if __name__ == "__main__":
    main()
