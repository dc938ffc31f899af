"""Assertion that a user's mistake ends in one clear sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rope_exp.system.errors import CheckpointError, ConfigError, DataError, RecordError

REFUSALS = (CheckpointError, ConfigError, DataError, RecordError)


@contextmanager
def refused(
    *words: str, by: type[Exception] | tuple[type[Exception], ...] = REFUSALS
) -> Iterator[list[str]]:
    """Assert that the block is refused in one line with each of `words`, and list that line."""
    said: list[str] = []
    with pytest.raises(by) as caught:
        yield said

    sentence = str(caught.value)
    said.append(sentence)
    assert "\n" not in sentence, sentence
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
