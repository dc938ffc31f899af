"""Position encodings from Python files: the examples of the docs and configs/, and `PULL`."""

import re
from dataclasses import replace
from typing import Any

from rope_exp.files import text_sha256
from rope_exp.sections import PeConfig
from support.configs import REPOSITORY
from support.models import make_pe

CONFIGS = REPOSITORY / "configs"
PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
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


WIDER = """
import torch
from rope_exp import Position


class Wider(Position):
    \"\"\"Puts squares of the first features before those of queries and keys.\"\"\"

    def turn(self, site, x_BTHK, position_T):
        if site not in "qk":
            return x_BTHK
        return torch.cat([x_BTHK[..., :2].square(), x_BTHK], dim=-1)
"""
NUMBER = """
import torch
from torch import nn
from rope_exp import Position


class Number(Position):
    \"\"\"Adds a number of the key's token to its scores.\"\"\"

    relative = None

    def __init__(self, sizes):
        super().__init__(sizes)
        self.weight = nn.Parameter(torch.linspace(-1, 1, sizes.hidden_size))

    def of_tokens(self, x_BTD, position_T):
        return {"number": x_BTD @ self.weight}

    def scores(self, kept, num_queries):
        number_BE = kept["number"]
        num_heads = self.sizes.num_attention_heads
        return number_BE[:, None, None].expand(-1, num_heads, num_queries, -1)
"""


def with_text(pe: PeConfig, code: str, source: str) -> PeConfig:
    digest = text_sha256(source)
    return replace(pe, name="mine", code=code, source=source, code_sha256=digest)


def example(name: str, *sites: str, **others: Any) -> PeConfig:
    """Return a variant of the class with this name, from the docs, configs/ or `PULL`."""
    blocks = [
        re.sub("^    ", "", block.strip("\n"), flags=re.MULTILINE)
        for block in re.findall(r"(?:^(?:    .*)?\n)+", PAGE, re.MULTILINE)
    ]
    shipped = [path.read_text(encoding="utf-8") for path in CONFIGS.glob("*.py")]
    [source] = [
        text for text in (*blocks, *shipped, PULL, WIDER, NUMBER) if f"class {name}(" in text
    ]
    return with_text(make_pe(*sites, **others), f"mine.{name}", source)
