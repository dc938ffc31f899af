"""A research harness that compares where in attention a rotary embedding should act.

See README.md. `load_run` opens a run's model; `patch` rotates other sites in a model of
transformers; `load_runs`, `load_metrics`, `load_probes` and `load_table` return data frames.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rope_exp.version import __version__

if TYPE_CHECKING:
    from rope_exp.export.patch import patch as patch
    from rope_exp.frames import load_metrics as load_metrics
    from rope_exp.frames import load_probes as load_probes
    from rope_exp.frames import load_runs as load_runs
    from rope_exp.frames import load_table as load_table
    from rope_exp.load import load_run as load_run
    from rope_exp.position._encoding import Position as Position
    from rope_exp.position._encoding import Sizes as Sizes

# The module of each name. They are imported lazily: `--help` and completion need no torch.
_MODULES = {
    "load_run": "load",
    **dict.fromkeys(("load_metrics", "load_probes", "load_runs", "load_table"), "frames"),
    "patch": "export.patch",
    **dict.fromkeys(("Position", "Sizes"), "position._encoding"),
}
__all__ = ["__version__", *_MODULES]


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rope_exp.{_MODULES[name]}"), name)
