"""The published tables, which the rows here stand beside, and the one home of their numbers.

Nobody has published a second measurement of the two of language models. They have one run a row and
no error bars, so the last digits are not to be leaned on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# The variant that differences are against, unless told otherwise: the standard one; where a kind
# of attention has no queries, the one that rotates nothing.
REFERENCE = "qk_rope"
UNROTATED = "nope"
# The variant that is held against the reference in every setting: whether values and outputs
# should rotate as well is what both articles and RoPER's authors ask.
RIVAL = "qkvo_rope"


@dataclass(frozen=True)
class Published:
    """A published table.

    Attributes:
        source: where it stands.
        short: the same for fonts without Chinese.
        setting: what is known of how it was made.
        losses: in nats per token, by the rows' labels, best first.
        order: the source's own, ">" its word for better, "≈" for too close to tell; empty: it
            draws none.
        relations: that order pair by pair, what stands between its neighbours.
        cached: the numbers that a layer caches of a token, by the rows' labels.
    """

    source: str
    short: str
    setting: str
    losses: Mapping[str, float]
    order: str = ""
    relations: Sequence[tuple[str, str, str]] = ()
    cached: Mapping[str, int] = field(default_factory=dict)

    @property
    def cited(self) -> str:
        """Where it stands, and what is known of how it was made."""
        return f"{self.source} ({self.setting})"


@dataclass(frozen=True)
class Claim:
    """What is published of rows without numbers that could stand beside ours.

    Attributes:
        source: where it stands.
        relations: as `Published` has them.
    """

    source: str
    relations: Sequence[tuple[str, str, str]]

    @property
    def cited(self) -> str:
        """Where it stands."""
        return self.source


# Variants of which it is asked whether and where the second passes the first.
PASSES = (
    ("qk_rope", "vo_rope"),
    ("qk_rope", "qkvo_rope"),
    ("vo_rope", "qkvo_rope"),
    ("nope", "v_rope"),
    ("nope", "o_rope"),
    ("nope", "q_rope"),
    ("nope", "k_rope"),
)
# Of the curves while both train, also these: what leads QK at first, and single sites.
PASSES_WITHIN = (
    *PASSES,
    ("qk_rope", "qkv_rope"),
    ("qk_rope", "v_rope"),
    ("qk_rope", "o_rope"),
    ("qk_rope", "k_rope"),
    ("qk_rope", "nope"),
    ("k_rope", "v_rope"),
    ("k_rope", "o_rope"),
)

# The nine variants of softmax attention, by PeConfig.label.
TABLE = Published(
    source=(
        "Su Jianlin, “Transformer升级之路：19、第二类旋转位置编码”, 18 April 2025, "
        "https://spaces.ac.cn/archives/10862"
    ),
    short="Su Jianlin, 18 April 2025, spaces.ac.cn/archives/10862",
    setting="about 1B parameters, one seed, corpus and budget not given",
    losses={
        "qk_rope": 2.712,
        "qkvo_rope": 2.719,
        "k_rope": 2.769,
        "vo_rope": 2.770,
        "qkv_rope": 2.783,
        "nope": 2.795,
        "o_rope": 2.841,
        "q_rope": 2.851,
        "v_rope": 2.856,
    },
    order="QK ≈ QKVO > K ≈ VO > QKV > NoPE > Q/V/O",
    relations=(
        ("qk_rope", "≈", "qkvo_rope"),
        ("qkvo_rope", ">", "k_rope"),
        ("k_rope", "≈", "vo_rope"),
        ("vo_rope", ">", "qkv_rope"),
        ("qkv_rope", ">", "nope"),
        ("nope", ">", "o_rope"),
        ("nope", ">", "q_rope"),
        ("nope", ">", "v_rope"),
    ),
)

# Kinds of attention by what they cache; by the names of rows in configs/row/sequel, which those of
# its small sister share.
SEQUEL_MODELS = ("sequel", "sequel_mini")
SEQUEL = Published(
    source=(
        "Su Jianlin, “Transformer升级之路：20、MLA好在哪里？（上）”, 4 May 2025, "
        "https://spaces.ac.cn/archives/10907"
    ),
    short="Su Jianlin, 4 May 2025, spaces.ac.cn/archives/10907",
    setting=(
        "0.8B to 1.2B parameters, 16B tokens in steps of 1M, length 4,096, Muon, one seed, corpus "
        "and rate not given"
    ),
    losses={
        "row=gqa1_s3": 2.677,
        "row=mla_wide": 2.705,
        "row=gqa2_s2": 2.708,
        "row=gqa1_pr": 2.711,
        "row=gqa4_wide_s2": 2.713,
        "row=gqa2_s1": 2.714,
        "row=gqa1": 2.720,
        "row=mha": 2.721,
        "row=mla": 2.721,
        "row=gqa2_wide": 2.729,
        "row=gqa4_s2": 2.738,
        "row=gqa2": 2.750,
    },
    cached={
        "row=gqa1_s3": 576,
        "row=mla_wide": 576,
        "row=gqa2_s2": 512,
        "row=gqa1_pr": 512,
        "row=gqa4_wide_s2": 768,
        "row=gqa2_s1": 640,
        "row=gqa1": 512,
        "row=mha": 4096,
        "row=mla": 576,
        "row=gqa2_wide": 768,
        "row=gqa4_s2": 512,
        "row=gqa2": 512,
    },
)

# Of generated data, by data.kind. RoPER is QKVO-RoPE, and was tried against RoPE, which is QK-RoPE.
ROPER = Claim(
    source=(
        "Georges Harik and Varuna Jayasiri, “Rotary Positional Embeddings with Relative distances "
        "(RoPER)”, https://research.labml.ai/RoPER.html"
    ),
    relations=(("qkvo_rope", ">", "qk_rope"),),
)
CLAIMS = {"addition": ROPER, "copy": ROPER}

# As docs/references.md has it; which of its averages these are, section 8 of docs/protocol.md.
COPY_REPEAT = Published(
    source=(
        "Georges Harik and Varuna Jayasiri, labml_nn/transformers/rope/value_pe/experiments/"
        "results.ipynb at commit 3582cc97 of "
        "https://github.com/labmlai/annotated_deep_learning_paper_implementations"
    ),
    short="Harik and Jayasiri, June 2022, the notebook of copy_repeat",
    setting=(
        "three layers of width 128, ten runs each, batches at the end of 33.5M tokens; values were "
        "turned twice and outputs back once"
    ),
    losses={"qkvo_rope": 0.319, "qk_rope": 0.330},
    relations=ROPER.relations,
)
TASKS = {"repeats": COPY_REPEAT}
