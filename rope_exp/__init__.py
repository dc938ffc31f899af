"""A research harness that compares where in attention a rotary embedding should act.

See README.md. `load_run` opens a run's model; `patch` rotates other sites in a model of
transformers; `load_runs`, `load_metrics`, `load_probes` and `load_table` return data frames.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# By name: the file that has it. Imported lazily: `--help` and completion need no torch.
_FILES = {
    "Position": "position._encoding",
    "Sizes": "position._encoding",
    "load_metrics": "frames.load",
    "load_probes": "frames.load",
    "load_run": "load.run",
    "load_runs": "frames.load",
    "load_table": "frames.load",
    "patch": "export.patch",
}
__all__ = ["__version__", *_FILES]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rope_exp.{_FILES[name]}"), name)
