"""The names of the probes of a finished model (evaluation/probes.py and answers.py)."""

from typing import Annotated, Literal, get_args

from rope_exp.config.schema import rule

Probe = Literal[
    "windows",
    "positions",
    "shift",
    "ablation",
    "repeat",
    "floors",
    "distance",
    "drift",
    "token_shift",
    "extension",
    "answers",
    "fit",
]
Probes = Annotated[
    tuple[Probe, ...],
    rule(
        f"must be a list of some of {', '.join(get_args(Probe))}, each at most once",
        lambda probes: len(set(probes)) == len(probes),
    ),
]
