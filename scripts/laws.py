"""Measure the laws of attention, for every kind and every subset that it allows to rotate.

Each is measured as a run is before it trains (rope_exp/model/laws.py). Prints the largest
deviations of each kind over its subsets, and writes these and every subset to --out.
"""

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rope_exp.config.compose import CONFIGS, run_config
from rope_exp.config.variants import SUBSETS, subset_name
from rope_exp.model.laws import certificate
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


@dataclass(frozen=True)
class Measured:
    """One subset of one kind.

    Attributes:
        kind: the overrides that choose it.
        law: the response of its outputs to a shift.
        deviation: from that law; None if the law has no formula.
        another: the deviation from the nearest law that does not hold.
        formulas: the deviation of each other formula, by its name.
    """

    kind: str
    subset: str
    law: str
    deviation: float | None
    another: float | None
    formulas: dict[str, float]


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
        measured = {kind: measure(kind) for kind in asked.kinds or sorted([*every, *FORMS])}
    except (ConfigError, LawError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED

    kinds = worst_of_kinds(measured)
    subsets = every_subset(itertools.chain(*measured.values()))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(asked.out, ABOUT.format(torch=torch.__version__, kinds=kinds, subsets=subsets))
    print(kinds, end="")
    return EXIT_DONE


def measure(kind: str) -> list[Measured]:
    """Return the measurements of each subset of a kind.

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
        own = deviations.pop(law, None)
        another = min(deviations.values(), default=None)
        found.append(Measured(kind, subset_name(rotate), law, own, another, measured["formulas"]))
    return found


def worst_of_kinds(measured: dict[str, list[Measured]]) -> str:
    """Return a table of the largest deviations over each kind's subsets.

    It also has the smallest deviation from a law that does not hold.
    """
    lines = []
    for kind, rows in measured.items():
        numbers = [largest(row.deviation for row in rows)]
        numbers += [min(row.another for row in rows if row.another is not None)]
        numbers += [largest(row.formulas.get(name) for row in rows) for name in OTHERS]
        lines.append([f"`{kind}`", str(len(rows)), *map(spelled, numbers)])
    return table(["kind", "subsets", "its law, at most", "another law, at least", *OTHERS], lines)


def every_subset(rows: Iterable[Measured]) -> str:
    """Return a table of every subset of every kind."""
    lines = []
    for row in rows:
        numbers = (row.deviation, row.another, *map(row.formulas.get, OTHERS))
        lines.append([f"`{row.kind}`", row.subset, row.law, *map(spelled, numbers)])
    return table(["kind", "rotates", "law", "its deviation", "another law", *OTHERS], lines)


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return markdown_lines([header, *lines], "<" * len(header)) + "\n"


def largest(numbers: Iterable[float | None]) -> float | None:
    """Return the largest number; None if there is none."""
    return max((number for number in numbers if number is not None), default=None)


def spelled(number: float | None) -> str:
    """Return a deviation to two digits; an empty string if there is none."""
    return "" if number is None else f"{number:.1e}"


if __name__ == "__main__":
    sys.exit(main())
