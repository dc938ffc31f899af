"""One contender of scripts/bench.py, in a process of its own: `python scripts/benchmarks/arms.py SPEC.json ARM`.

Sets its training up, then says on standard output, one JSON object a line, how long that took; then, for every number N
that it is given on standard input, takes N optimizer steps and says how long they took, until its input ends. All arms
train the same shape, batch, length and precision on windows of the same corpus, with AdamW and clipping.

The arm `litgpt` imports nothing of rope_exp, so that it runs in an environment of its own.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

STARTED = time.perf_counter()


class Gate:
    """Lets through as many steps as asked for, and times them."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._left, self._burst, self._since = device, 0, 0, 0.0
        # Its own way out: what an arm prints of its own accord goes to standard error.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def __call__(self) -> None:
        """Called before every step; ends the process when nothing more is asked."""
        if self._left == 0:
            self._wait()
        self._left -= 1

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        said = {"setup_s": now - STARTED}
        if self._burst:
            said = {"step_s": (now - self._since) / self._burst, "peak_bytes": self._peak_bytes()}
        print(json.dumps(said), file=self._out, flush=True)
        line = sys.stdin.readline()
        if not line.strip():
            os._exit(0)  # out of whatever loop this was called from
        self._burst = self._left = int(line)
        self._since = time.perf_counter()

    def _peak_bytes(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


class Spec:
    """What every arm trains."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent  # for what an arm writes; the race removes it
        self.values = values = json.loads(path.read_text(encoding="utf-8"))
        self.model: dict[str, Any] = values["model"]
        self.vocab_size: int = values["vocab_size"]
        self.batch, self.micro, self.seq_len = values["batch"], values["micro"], values["seq_len"]
        self.bf16 = values["precision"] == "bf16"
        self.device = torch.device(values["device"])
        self.lr, self.betas, self.weight_decay, self.clip = 1e-3, (0.9, 0.95), 0.1, 1.0

    def windows(self) -> np.ndarray:
        """[N, T + 1] ids."""
        windows: np.ndarray = np.load(self.values["windows"])
        return windows

    def micro_batches(self) -> Iterator[list[torch.Tensor]]:
        """Each step's micro-batches, [b, T + 1] each, for ever."""
        windows = torch.from_numpy(self.windows())
        for start in itertools.cycle(range(0, len(windows) - self.batch + 1, self.batch)):
            ids = windows[start : start + self.batch]
            if self.device.type == "cuda":
                ids = ids.pin_memory()
            yield list(torch.split(ids.to(self.device, non_blocking=True), self.micro))

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


def ours(spec: Spec, gate: Gate, *, compiled: bool = True) -> None:
    """The harness as users run it: the record, the hashes, the checks of every step."""
    from rope_exp.config.run import RunConfig
    from rope_exp.data.prepare import prepare
    from rope_exp.system.signals import StopSignal
    from rope_exp.training.parallel import Parallel
    from rope_exp.training.step import Started, TrainingStep
    from rope_exp.training.trainer import Trainer
    from rope_exp.training.worker import set_up_process

    class Gated(TrainingStep):
        def __call__(self, step: int) -> Started | None:
            gate()
            return super().__call__(step)

    config = RunConfig.from_dict(spec.values["config"])
    config = config.replace(
        "train", compile=compiled, num_steps=10**9, eval_every=10**9, save_every=10**9
    )
    set_up_process(config)
    prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
    parallel = Parallel(spec.device.type, "bf16" if spec.bf16 else "fp32", 1)
    trainer = Trainer(config, spec.folder, prepared, parallel, StopSignal())
    trainer.train_step.__class__ = Gated
    trainer.train()


def bare(spec: Spec, gate: Gate, *, compiled: bool = True) -> None:
    """The same model, compiled alike, in the shortest loop that trains it: what our harness costs beside it."""
    from rope_exp.config.run import RunConfig
    from rope_exp.model.decoder import Decoder
    from rope_exp.training.worker import set_up_process

    config = RunConfig.from_dict(spec.values["config"])
    set_up_process(config)
    model = Decoder(config.architecture(spec.vocab_size))
    model.initialise(0)
    model.to(spec.device)
    if compiled:
        model.compile_parts()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay, fused=True
    )
    for micro_batches in spec.micro_batches():
        gate()
        for ids in micro_batches:
            with spec.autocast():
                loss = model(ids[:, :-1], ids[:, 1:]) / (spec.batch * spec.seq_len)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def trainer(spec: Spec, gate: Gate, *, compiled: bool) -> None:
    """transformers' Trainer on LlamaForCausalLM."""
    import transformers

    class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __init__(self) -> None:
            self.windows = torch.from_numpy(spec.windows())[:, : spec.seq_len]

        def __len__(self) -> int:
            return len(self.windows)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"input_ids": self.windows[index], "labels": self.windows[index]}

    class Gated(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            gate()

    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=spec.vocab_size,
            max_position_embeddings=spec.seq_len,
            use_cache=False,
            **spec.model,
        )
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(spec.folder),
        use_cpu=spec.device.type == "cpu",
        bf16=spec.bf16,
        torch_compile=compiled,
        tf32=False if spec.device.type == "cuda" else None,  # which torch_compile would switch on
        per_device_train_batch_size=spec.micro,
        gradient_accumulation_steps=spec.batch // spec.micro,
        max_steps=10**9,
        learning_rate=spec.lr,
        adam_beta2=spec.betas[1],
        weight_decay=spec.weight_decay,
        max_grad_norm=spec.clip,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=spec.device.type == "cuda",
    )
    transformers.Trainer(model, arguments, train_dataset=Windows(), callbacks=[Gated()]).train()


def litgpt(spec: Spec, gate: Gate) -> None:
    """litgpt's GPT, compiled, under Fabric and its chunked loss, as its `pretrain` sets them up."""
    import lightning
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    shape = spec.model
    fabric = lightning.Fabric(
        accelerator=spec.device.type, devices=1, precision="bf16-mixed" if spec.bf16 else "32-true"
    )
    fabric.launch()
    config = Config(
        block_size=spec.seq_len,
        vocab_size=spec.vocab_size,
        padded_vocab_size=spec.vocab_size,
        n_layer=shape["num_hidden_layers"],
        n_head=shape["num_attention_heads"],
        n_query_groups=shape["num_key_value_heads"],
        n_embd=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        norm_class_name="RMSNorm",
        norm_eps=shape["rms_norm_eps"],
        mlp_class_name="LLaMAMLP",
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
    )
    with fabric.init_module():
        model = GPT(config)
    if shape["tie_word_embeddings"]:
        model.lm_head.weight = model.transformer.wte.weight
    wrapped = fabric.setup(torch.compile(model))
    optimizer = fabric.setup_optimizers(
        torch.optim.AdamW(
            model.parameters(),
            lr=spec.lr,
            betas=spec.betas,
            weight_decay=spec.weight_decay,
            fused=spec.device.type == "cuda",
        )
    )
    for micro_batches in spec.micro_batches():
        gate()
        for number, ids in enumerate(micro_batches, start=1):
            with fabric.no_backward_sync(wrapped, enabled=number < len(micro_batches)):
                logits = wrapped(ids[:, :-1].contiguous())
                loss = chunked_cross_entropy(logits, ids[:, 1:].contiguous())
                fabric.backward(loss / len(micro_batches))
        fabric.clip_gradients(wrapped, optimizer, max_norm=spec.clip)
        optimizer.step()
        optimizer.zero_grad()


ARMS: dict[str, Callable[[Spec, Gate], None]] = {
    "ours": ours,
    "ours eager": lambda spec, gate: ours(spec, gate, compiled=False),
    "bare": bare,
    "bare eager": lambda spec, gate: bare(spec, gate, compiled=False),
    "Trainer eager": lambda spec, gate: trainer(spec, gate, compiled=False),
    "Trainer compiled": lambda spec, gate: trainer(spec, gate, compiled=True),
    "litgpt": litgpt,
}

if __name__ == "__main__":
    if sys.argv[2] != "litgpt":
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    spec = Spec(Path(sys.argv[1]))
    ARMS[sys.argv[2]](spec, Gate(spec.device))
