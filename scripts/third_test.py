"""Simulate both tests of docs/protocol-3.md under known truth: error and power.

    python scripts/third_test.py --out results/lead_26m

Shapes: D draws, S seeds, R learning rates, P relations.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from rope_exp.evidence.contrasts import Array
from rope_exp.evidence.layout import ALPHA, holm
from rope_exp.evidence.significance import two_sided

# The smallest SD of a pair's eight differences in nine_26m, that of QKVO - QK, and the largest.
SDS = (0.011, 0.0195, 0.039)
GAPS = (0.0, 0.005, 0.01, 0.02, 0.04)  # nats
NUM_RATES = 3

# Of 13 seeds trained at 26M tokens, copying appeared at one. There, runs that copy ended 0.08 lower
# in the mean.
COPY_CHANCE = 1 / 13
COPY_GAIN = 0.08

# The relations of test B, by SD of their differences in nine_26m.
OPEN = {"K ≈ VO": 0.0266, "NoPE > O": 0.0314, "NoPE > V": 0.0338}


def main() -> None:
    """Write <out>/simulated.csv, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=20_000, help="draws per setting (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    options = parser.parse_args()

    table = pd.DataFrame([*lead(options.draws), *open_relations(options.draws)])
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "simulated.csv", index=False, float_format="%.4f")
    print(table.to_string(index=False))


def lead(num_draws: int, num_seeds: int = 12) -> list[dict[str, object]]:
    """Return how often test A calls QKVO and QK different, by noise, difference and copying."""
    rows: list[dict[str, object]] = []
    for sd, gap, copies in itertools.product(SDS, GAPS, (False, True)):
        random = np.random.default_rng(0)
        delta_DSR = random.normal(gap, sd, size=(num_draws, num_seeds, NUM_RATES))
        if copies:
            # Whether a seed copies at all is drawn for its six runs; then each does in one of two.
            shape_DSR = delta_DSR.shape
            can_copy_DS1 = random.random((num_draws, num_seeds, 1)) < COPY_CHANCE
            one_DSR, other_DSR = random.random((2, *shape_DSR)) < 0.5
            delta_DSR += COPY_GAIN * can_copy_DS1 * (one_DSR.astype(float) - other_DSR)

        is_different_D = _p_values(delta_DSR.mean(axis=2)) < ALPHA
        setting = {"test": "A", "sd": sd, "copying": copies, "difference": gap}
        rows.append(setting | {"called different": is_different_D.mean()})
    return rows


def open_relations(num_draws: int, num_seeds: int = 8) -> list[dict[str, object]]:
    """Return how often test B finds a difference, where all three relations differ by as much.

    Without a difference the share is that of experiments with any false difference.
    """
    rows: list[dict[str, object]] = []
    for scale, gap in itertools.product((0.5, 1.0), GAPS):
        random = np.random.default_rng(0)
        sd_P = scale * np.array(list(OPEN.values()))
        delta_DPS = gap + sd_P[:, None] * random.normal(size=(num_draws, len(OPEN), num_seeds))
        is_different_DP = holm(_p_values(delta_DPS)) < ALPHA

        setting = {"test": "B", "sd": f"{scale:g} of found", "copying": False, "difference": gap}
        found = is_different_DP.any(axis=1) if gap == 0 else is_different_DP
        rows.append(setting | {"called different": found.mean()})
    return rows


def _p_values(delta_XS: Array) -> Array:
    """Return the p-value of a paired t test over the last axis."""
    num_seeds = delta_XS.shape[-1]
    error_X = delta_XS.std(axis=-1, ddof=1) / np.sqrt(num_seeds)
    return two_sided(delta_XS.mean(axis=-1) / error_X, num_seeds - 1)


if __name__ == "__main__":
    main()
