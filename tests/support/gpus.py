"""Simulated GPUs, which everything except torch sees."""

import pytest

from rope_exp import machine


def show_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make nvidia-smi list `count` GPUs of capability 9.0 and 80 GiB, with numbers as UUIDs."""
    values = {"compute_cap": "9.0", "memory.total": "81920"}

    def nvidia_smi(*columns: str) -> list[tuple[str, ...]]:
        return [tuple(values.get(name, str(gpu)) for name in columns) for gpu in range(count)]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_nvidia_smi", nvidia_smi)
