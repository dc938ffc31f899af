"""Fixtures of the harness's tests that the paper's tests use, too."""

from conftest import cache, corpus, environment, home, once

__all__ = ["cache", "corpus", "environment", "home", "once"]
