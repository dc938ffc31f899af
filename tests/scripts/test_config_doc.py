"""Test of docs/config.md, the page of every key."""

import config_doc

from rope_exp.config import RunConfig, flat


def test_the_page_is_that_of_the_dataclasses() -> None:
    """If the page is out of date, `python scripts/config_doc.py` rewrites it."""
    page = config_doc.text()
    assert config_doc.PAGE.read_text(encoding="utf-8") == page
    assert all(f"| `{key}` |" in page for key in flat(RunConfig().to_dict()))
    assert "|  |" not in page, "give each key a comment, its meaning"
