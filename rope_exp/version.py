"""The version of rope_exp."""

__version__ = "0.3.0"
