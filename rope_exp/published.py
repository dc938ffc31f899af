"""Published results to compare our rows with; their numbers are in published.yaml."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import yaml

from rope_exp.comparable import ROW
from rope_exp.folder import Run
from rope_exp.sections import SoftmaxConfig

# The default references for differences: the standard variant; for a kind of attention without
# queries, the variant that rotates nothing.
REFERENCE = "qk_rope"
UNROTATED = "nope"


class Published(NamedTuple):
    """A published table, or a claim about rows without numbers; empty: nothing was published."""

    source: str = ""  # the citation
    short: str = ""  # the same for fonts without Chinese
    setting: str = ""  # the known facts about its training
    # In nats per token, by the rows' labels, best first; empty for a claim.
    losses: Mapping[str, float] = MappingProxyType({})
    # The source's own, with ">" for better and "≈" for too close to distinguish.
    order: str = ""
    # That order as pairs of neighbours, with the sign between them.
    relations: Sequence[tuple[str, str, str]] = ()
    # The numbers that a layer caches per token, by the rows' labels.
    cached: Mapping[str, int] = MappingProxyType({})

    @property
    def signs(self) -> dict[tuple[str, str], str]:
        """The signs of the relations, by their pairs."""
        return {(a, b): sign for a, sign, b in self.relations}


_TEXT = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
# By data.kind, besides the two tables of language models.
TASKS = {name: Published(**facts) for name, facts in yaml.safe_load(_TEXT).items()}
TABLE = TASKS.pop("table")
SEQUEL = TASKS.pop("sequel")
# Both versions of the sequel's model share its rows' labels.
SEQUEL_MODELS = ("sequel", "sequel_mini")


def about(runs: Sequence[Run], keys: Sequence[str]) -> Published:
    """Return what was published about rows that these factors distinguish."""
    # The published runs started from random weights.
    if any(run.config.init_weights for run in runs):
        return Published()
    kinds = {run.config.data.kind for run in runs}
    if len(kinds) == 1 and list(keys) == ["pe"] and TASKS.keys() >= kinds:
        return TASKS[kinds.pop()]
    if any(run.config.data.task or run.config.train.objective != "causal" for run in runs):
        return Published()
    is_sequel = all(run.config.model.name in SEQUEL_MODELS for run in runs)
    if list(keys) == ["pe"]:
        is_softmax = all(isinstance(run.config.attn, SoftmaxConfig) for run in runs)
        return TABLE if is_softmax and not is_sequel else Published()
    return SEQUEL if list(keys) == [ROW] and is_sequel else Published()
