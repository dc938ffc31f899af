"""Published results about rows of a table; the numbers are in published.yaml."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from rope_exp.comparable import ROW, Published
from rope_exp.folder import Run
from rope_exp.sections import SoftmaxConfig

_TEXT = Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
_ALL = {name: Published(**fields) for name, fields in yaml.safe_load(_TEXT).items()}
# The two tables of language models: Su 2025, and Su May 2025 (docs/references.md).
TABLE = _ALL["table"]
SEQUEL = _ALL["sequel"]
# All others, by data.kind.
TASKS = {name: known for name, known in _ALL.items() if name not in ("table", "sequel")}


def about(runs: Sequence[Run], keys: Sequence[str]) -> Published:
    """Return what was published about rows that these factors distinguish."""
    # The published runs started from random weights.
    if any(run.config.init_weights for run in runs):
        return Published()
    kinds = {run.config.data.kind for run in runs}
    if len(kinds) == 1 and list(keys) == ["pe"] and TASKS.keys() >= kinds:
        return TASKS[kinds.pop()]
    if any(run.config.task or run.config.train.objective != "causal" for run in runs):
        return Published()
    # Both versions of the model of Su May 2025 share the labels of its rows.
    is_sequel = all(run.config.model.name in ("sequel", "sequel_mini") for run in runs)
    if list(keys) == ["pe"]:
        is_softmax = all(isinstance(run.config.attn, SoftmaxConfig) for run in runs)
        return TABLE if is_softmax and not is_sequel else Published()
    return SEQUEL if list(keys) == [ROW] and is_sequel else Published()
