"""Position encodings from Python files: the examples of the docs and configs/, and `PULL`."""

import re
from dataclasses import replace
from typing import Any

from rope_exp.config.variants import PeConfig, source_sha256
from support.configs import REPOSITORY
from support.models import make_pe

CONFIGS = REPOSITORY / "configs"
PAGE = (REPOSITORY / "docs" / "own-position.md").read_text(encoding="utf-8")
PULL = """
import torch
from torch import nn
from rope_exp import Position


class Pull(Position):
    \"\"\"A learned slope for each head: scores fall with the distance.\"\"\"

    def __init__(self, sizes):
        super().__init__(sizes)
        self.slope = nn.Parameter(torch.ones(sizes.num_attention_heads))

    def scores(self, kept, num_queries):
        key_BE = kept["position_BE"]
        distance_BTE = key_BE[:, -num_queries:, None] - key_BE[:, None]
        return -self.slope[:, None, None] * distance_BTE[:, None].abs()
"""


def with_text(pe: PeConfig, code: str, source: str) -> PeConfig:
    digest = source_sha256(source)
    return replace(pe, name="mine", code=code, source=source, code_sha256=digest)


def example(name: str, *sites: str, **others: Any) -> PeConfig:
    """Return a variant of the class with this name, from the docs, configs/ or `PULL`."""
    blocks = [
        re.sub("^    ", "", block.strip("\n"), flags=re.MULTILINE)
        for block in re.findall(r"(?:^(?:    .*)?\n)+", PAGE, re.MULTILINE)
    ]
    shipped = [path.read_text(encoding="utf-8") for path in CONFIGS.glob("*.py")]
    [source] = [text for text in (*blocks, *shipped, PULL) if f"class {name}(" in text]
    return with_text(make_pe(*sites, **others), f"mine.{name}", source)
