"""The links of Markdown pages."""

import re
from collections.abc import Iterable
from pathlib import Path


def broken_links(pages: Iterable[Path]) -> list[str]:
    """Return the relative links that name no file, or none of the headings of their page."""
    broken = []
    for page in pages:
        links = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
        for target, anchor in links:
            if "://" in target:
                continue
            found = page.parent / target if target else page
            if not found.exists():
                broken.append(f"{page.name}: {target}")
            elif anchor and anchor not in anchors(found):
                broken.append(f"{page.name}: {target}#{anchor}")
    return broken


def anchors(page: Path) -> list[str]:
    """Return the anchors of a page's headings, as links spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
