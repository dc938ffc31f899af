"""One way to say that a user's mistake ends in one clear sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rope_exp.system.errors import CheckpointError, ConfigError, DataError, RecordError

REFUSALS = (CheckpointError, ConfigError, DataError, RecordError)


@contextmanager
def refused(
    *words: str, by: type[Exception] | tuple[type[Exception], ...] = REFUSALS
) -> Iterator[None]:
    """The block must be refused in one line that holds each of `words`."""
    with pytest.raises(by) as caught:
        yield
    sentence = str(caught.value)
    assert "\n" not in sentence, sentence
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
