"""A research harness that compares where in attention a rotary embedding should act.

See README.md. `load_run` opens a run's model; `patch` rotates other sites in a model of
transformers; `load_runs`, `load_metrics`, `load_probes` and `load_table` return data frames.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rope_exp.evaluation.load import load_run
    from rope_exp.evidence.frames import load_metrics, load_probes, load_runs, load_table
    from rope_exp.export.patch import patch
    from rope_exp.model.position import Position, Sizes

__version__ = "0.2.0"

__all__ = [
    "Position",
    "Sizes",
    "__version__",
    "load_metrics",
    "load_probes",
    "load_run",
    "load_runs",
    "load_table",
    "patch",
]


def __getattr__(name: str) -> Any:
    # Import lazily: the dispatcher imports this package and must never import torch.
    if name == "load_run":
        from rope_exp.evaluation.load import load_run

        return load_run
    if name in ("Position", "Sizes"):
        from rope_exp.model import position

        return getattr(position, name)
    if name == "patch":
        from rope_exp.export.patch import patch

        return patch
    if name in ("load_metrics", "load_probes", "load_runs", "load_table"):
        from rope_exp.evidence import frames

        return getattr(frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
