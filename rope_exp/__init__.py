"""A research harness that compares where in attention a rotary embedding should act.

See README.md. `load_run` opens a run's model; `patch` rotates other sites in a model of
transformers; `load_runs`, `load_metrics`, `load_probes` and `load_table` return data frames.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# The module of each name. They are imported lazily: `--help` and completion need no torch.
_MODULES = {
    "load_run": "load.run",
    **dict.fromkeys(("load_metrics", "load_probes", "load_runs", "load_table"), "frames.load"),
    "patch": "export.patch",
    **dict.fromkeys(("Position", "Sizes"), "position._encoding"),
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rope_exp.{_MODULES[name]}"), name)
