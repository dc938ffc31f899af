"""Choose the test of docs/protocol.md: simulate every candidate under the pilot's noise."""

import argparse
from pathlib import Path

import pandas as pd

from rope_exp.evidence.power import simulate


def main() -> None:
    """Write <out>/power.csv: error rates, power and coverage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--deviations",
        type=float,
        nargs="+",
        required=True,
        help="of a run's loss within a seed, in nats; each is simulated",
    )
    parser.add_argument("--draws", type=int, default=2000, help="of each layout (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/noise"), help="(%(default)s)")
    asked = parser.parse_args()

    asked.out.mkdir(parents=True, exist_ok=True)
    tables = {deviation: simulate(deviation, asked.draws) for deviation in asked.deviations}
    table = pd.concat(tables, names=["deviation"]).reset_index(level=0)
    table.to_csv(asked.out / "power.csv", index=False, float_format="%.4f")
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
