"""Measure the laws of attention, for every kind and every subset that it allows to rotate.

Each is measured as a run is before it trains (rope_exp/model/laws.py). Prints the largest
deviations of each kind over its subsets, and writes these and every subset to --out.
"""

import argparse
import itertools
import shlex
import sys
from pathlib import Path

import pandas as pd
import torch

from rope_exp.config.variants import SUBSETS, subset_name
from rope_exp.model.laws import certificate
from rope_exp.plan.compose import CONFIGS, run_config
from rope_exp.report.spelling import markdown_lines
from rope_exp.system.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, ConfigError, LawError
from rope_exp.system.files import write_atomically

# Measured in addition to the choices of configs/attn.
FORMS = (
    "attn=decay attn.gamma=learned",
    "attn=linear attn.form=both",
    "attn=linear attn.form=one_plus_cos",
)
OUT = Path("results/bench/laws.md")
OTHERS = ("absorbed", "parallel", "cached")
ABOUT = """# Deviations from the laws of attention

Made by `python scripts/laws.py`, with torch {torch}. Each kind is measured as before a run of `model=nano`: a small instance with random weights in float64, with positions shifted by 5. Deviations are relative to the largest output if that is above 1. Depending on the subset, an output must be invariant, rotate by R_c, rotate by R_-c, or do neither; "another law" is the nearest law that does not hold. Absorbed, parallel and cached are other formulas for the same output.

## Largest deviations of each kind

{kinds}
## Every subset

{subsets}"""  # noqa: E501


# The columns of the table of every subset.
COLUMNS = ("kind", "rotates", "law", "its deviation", "another law", *OTHERS)


def main() -> int:
    """Measure, print and write.

    Returns:
        The exit code: 0; 1 if a law is broken, 2 after a mistake, each reported in one sentence.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [f"attn={path.stem}" for path in sorted((CONFIGS / "attn").glob("*.yaml"))]
    parser.add_argument(
        "kinds", nargs="*", metavar="'KEY=VALUE ...'", help="default: every kind and form"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="(%(default)s)")
    asked = parser.parse_args()

    try:
        measured = [measure(kind) for kind in asked.kinds or sorted([*every, *FORMS])]
    except (ConfigError, LawError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED

    subsets = pd.DataFrame(itertools.chain(*measured), columns=COLUMNS)
    kinds = table(worst_of_kinds(subsets))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(
        asked.out, ABOUT.format(torch=torch.__version__, kinds=kinds, subsets=table(subsets))
    )
    print(kinds, end="")
    return EXIT_DONE


def measure(kind: str) -> list[dict[str, str | float | None]]:
    """Return a line of the table for each subset of a kind.

    Raises:
        ConfigError: the words choose no kind.
        LawError: it breaks a law.
    """
    config = run_config([*shlex.split(kind), "pe=nope"])
    found = []
    for rotate in SUBSETS:
        if not set(rotate) <= set(config.attn.sites()):
            continue
        pe = config.replace("pe", rotate=rotate).pe
        measured = certificate(config.model, pe, config.attn)
        deviations = measured["max_deviation"]
        law = measured["measured"]
        line = {"kind": f"`{kind}`", "rotates": subset_name(rotate), "law": law}
        # Some laws have no formula.
        line["its deviation"] = deviations.pop(law, None)
        line["another law"] = min(deviations.values(), default=None)
        found.append(line | measured["formulas"])
    return found


def worst_of_kinds(subsets: pd.DataFrame) -> pd.DataFrame:
    """Return the largest deviations over each kind's subsets, and the smallest from other laws."""
    of_kinds = subsets.groupby("kind", sort=False)
    found = of_kinds[["its deviation", *OTHERS]].max()
    found.insert(0, "subsets", of_kinds.size().astype(str))
    found.insert(2, "another law, at least", of_kinds["another law"].min())
    return found.rename(columns={"its deviation": "its law, at most"}).reset_index()


def table(frame: pd.DataFrame) -> str:
    """Return a table in Markdown, with deviations to two digits."""
    text = frame.map(lambda cell: cell if isinstance(cell, str) else f"{cell:.1e}")
    lines = text.where(frame.notna(), "").to_numpy().tolist()
    return markdown_lines([[*frame], *lines], "<" * len(frame.columns)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
