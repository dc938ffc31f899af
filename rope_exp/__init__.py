"""A research harness that compares where in attention a rotary embedding should act.

See README.md. `load_run` opens a run's model; `patch` rotates other sites in a model of
transformers; `load_runs`, `load_metrics`, `load_probes` and `load_table` return data frames.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rope_exp.load import load_run

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


# By module. Imported lazily: `--help` and completion need no torch.
_NAMES = {
    "load": ("load_run",),
    "frames.load": ("load_metrics", "load_probes", "load_runs", "load_table"),
    "export.patch": ("patch",),
    "position._encoding": ("Position", "Sizes"),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"rope_exp.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
