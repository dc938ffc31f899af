"""Assertion that a mistake is refused with a one-line message."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rope_exp.errors import CheckpointError, ConfigError, DataError, RunFolderError

REFUSALS = (CheckpointError, ConfigError, DataError, RunFolderError)


@contextmanager
def refused(
    *words: str, by: type[Exception] | tuple[type[Exception], ...] = REFUSALS
) -> Iterator[list[str]]:
    """Assert that the block raises a one-line error with each of `words`; yield a list for it."""
    said: list[str] = []
    with pytest.raises(by) as caught:
        yield said

    sentence = str(caught.value)
    said.append(sentence)
    assert "\n" not in sentence, sentence
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
