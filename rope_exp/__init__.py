"""Where in attention should a rotation go? See README.md; `load_run` opens what a run has learned."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rope_exp.evaluation.load import load_run

    __version__: str

__all__ = ["__version__", "load_run"]


def __getattr__(name: str) -> Any:
    # Lazily: the dispatcher imports this package, and must never import torch.
    if name == "load_run":
        from rope_exp.evaluation.load import load_run

        return load_run
    if name == "__version__":
        from rope_exp.run.provenance import own_version

        return own_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
