"""Estimates for one kind of GPU: a run's memory, its time and what that costs.

The shares of the peak (MFU) are those that others measured, counted as `flops_per_token` counts:
attention is causal, and nothing is recomputed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rope_exp.config.run import RunConfig
from rope_exp.model.count import num_parameters
from rope_exp.plan.costs import PEAK_TFLOPS, memory_bytes, run_flops
from rope_exp.plan.plan import GIB, LEAST_ESTIMATED, vocabulary
from rope_exp.plan.resolve import resolve
from rope_exp.system.errors import ConfigError

HEADER = ("run", "parameters", "tokens", "FLOPs", "GiB per GPU", "GPU-hours", "cost")


@dataclass(frozen=True)
class Card:
    """A GPU by its vendor's data sheet, and the range of MFU that others measured on it.

    Attributes:
        peak: its key in `PEAK_TFLOPS`.
        gigabytes: 1e9 bytes each. Drivers show a few percent more, which CUDA itself takes.
        source: the measurements, by their short names in docs/references.md.
    """

    peak: str
    gigabytes: int
    low: float
    high: float
    source: str


_AMPERE = (0.40, 0.56, "MosaicML 2023: 125M and 1.3B on eight A100")
_HOPPER = (0.35, 0.45, "MosaicML 2023: 1.3B and 6.7B on eight H100")
_ADA = (0.25, 0.50, "nanoGPT 2023: 51% for 124M on one RTX 4090; the lower end is a guess")

CARDS = {
    "a100-40": Card("A100", 40, *_AMPERE),
    "a100-80": Card("A100", 80, *_AMPERE),
    "h100": Card("H100", 80, *_HOPPER),
    "h200": Card("H200", 141, *_HOPPER),
    "b200": Card("B200", 180, *_HOPPER[:2], "none found; the range of an H100"),
    "l40s": Card("L40S", 48, *_ADA),
    "4090": Card("RTX 4090", 24, *_ADA),
}


def card_lines(configs: Sequence[RunConfig], gpu: str, price: float | None = None) -> list[str]:
    """Return a table of runs on one kind of GPU, and their sum.

    Args:
        configs: with any `auto` unresolved; precision=auto is bf16 there.
        gpu: a key of `CARDS`.
        price: of one GPU for an hour, in any currency.
    Raises:
        ConfigError: there is no such GPU.
    """
    if gpu not in CARDS:
        raise ConfigError("--gpu", gpu, f"must be one of {', '.join(CARDS)}")
    card = CARDS[gpu]

    found = []
    for config in map(_beside_a_gpu, configs):
        if config.train.precision != "bf16":
            raise ConfigError(
                "train.precision", config.train.precision, "--gpu estimates bf16 only"
            )
        vocab_size = vocabulary(config)
        name = f"{config.pe.label} {config.model.name} s{config.seed}"
        params = num_parameters(config.architecture(vocab_size))
        flops = run_flops(config, vocab_size)
        needed = memory_bytes(config, vocab_size)
        found.append((name, params, config.train.num_tokens, flops, needed))

    names, params_of, tokens_of, flops_of, _ = zip(*found, strict=True)
    total = (
        f"{len(names)} run{'s' * (len(names) > 1)}",
        sum(params_of),
        sum(tokens_of),
        sum(flops_of),
        None,
    )
    is_large = min(params_of) >= LEAST_ESTIMATED
    rows = [HEADER, *(_cells(card, price, *line, line[1] >= LEAST_ESTIMATED) for line in found)]
    rows.append(_cells(card, price, *total, is_large))

    columns = list(zip(*rows, strict=True))[: 6 if price is None else 7]
    padded = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    lines = [
        f"estimates for {gpu}, by its data sheet {card.gigabytes} GB and "
        f"{PEAK_TFLOPS[card.peak]:g} TFLOP/s in dense bf16, "
        f"at {card.low:.0%} to {card.high:.0%} MFU ({card.source})",
        *("  ".join(row) for row in zip(*padded, strict=True)),
    ]
    if not is_large:
        lines.append(f"-: no estimate below {LEAST_ESTIMATED:,} parameters on a GPU")
    return lines


def _cells(
    card: Card,
    price: float | None,
    name: str,
    params: int,
    tokens: int,
    flops: int,
    needed: int | None,
    is_large: bool,
) -> tuple[str, ...]:
    """Return a row of the table; too small a model has no hours and no cost."""
    memory = f"{needed / GIB:.1f} of {1e9 * card.gigabytes / GIB:.1f}" if needed else ""
    hours = [flops / (PEAK_TFLOPS[card.peak] * 3.6e15 * mfu) for mfu in (card.high, card.low)]
    costs = [(price or 0) * each for each in hours]
    ranges = [f"{low:,.1f} to {high:,.1f}" if is_large else "-" for low, high in (hours, costs)]
    return name, f"{params:,}", f"{tokens:,}", f"{flops:.3e}", memory, *ranges


def _beside_a_gpu(config: RunConfig) -> RunConfig:
    """Return a config as a machine with GPUs that have bf16 would resolve it."""
    precision = "bf16" if config.train.precision == "auto" else config.train.precision
    train = replace(config.train, precision=precision)
    found = resolve(replace(config, train=train, launch=replace(config.launch, device="cpu")))
    return replace(found, launch=replace(found.launch, device="cuda"))
