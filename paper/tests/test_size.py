"""Test that the paper's code and tests stay small."""

import pytest
import tables
from support.sizes import num_nodes

# The most syntax nodes: today's and about 5 %. Whoever needs more raises the limit, and says why in
# docs/decisions.md.
NODES = {"*.py": 5_000, "tests/*.py": 11_000}


@pytest.mark.parametrize("pattern", NODES)
def test_the_paper_does_not_grow(pattern: str) -> None:
    paths = [*tables.PAPER.glob(pattern)]
    assert paths
    assert num_nodes(paths) <= NODES[pattern]
