"""The page of every key."""

import config_doc

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import known_keys


def test_the_page_is_that_of_the_dataclasses() -> None:
    """Else `python scripts/config_doc.py` writes it again."""
    page = config_doc.text()
    assert config_doc.PAGE.read_text(encoding="utf-8") == page
    assert all(f"| `{key}` |" in page for key in known_keys(RunConfig))
