"""Published results to compare our rows with; this is the only place for their numbers.

Nobody has published a second measurement of the two tables of language models. They have one run
per row and no error bars, so do not rely on the last digits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rope_exp.comparable import ROW
from rope_exp.runs import Run
from rope_exp.sections import SoftmaxConfig

# The default references for differences: the standard variant; for a kind of attention without
# queries, the variant that rotates nothing.
REFERENCE = "qk_rope"
UNROTATED = "nope"


@dataclass(frozen=True)
class Published:
    """A published table, or a claim about rows without numbers.

    Attributes:
        source: the citation.
        short: the same for fonts without Chinese.
        setting: the known facts about its training.
        losses: in nats per token, by the rows' labels, best first; empty for a claim.
        order: the source's own, with ">" for better and "≈" for too close to distinguish; empty:
            it gives none.
        relations: that order as pairs of neighbours, with the sign between them.
        cached: the numbers that a layer caches per token, by the rows' labels.
    """

    source: str
    short: str = ""
    setting: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)
    order: str = ""
    relations: Sequence[tuple[str, str, str]] = ()
    cached: Mapping[str, int] = field(default_factory=dict)

    @property
    def cited(self) -> str:
        """The citation, and the known facts about its training."""
        return f"{self.source} ({self.setting})" if self.setting else self.source


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

# Kinds of attention by their cache. Labels are names of rows in configs/row/sequel; its smaller
# version shares them.
SEQUEL_MODELS = ("sequel", "sequel_mini")
SEQUEL = Published(
    source=(
        "Su Jianlin, “Transformer升级之路：20、MLA好在哪里？（上）”, 4 May 2025, "
        "https://spaces.ac.cn/archives/10907"
    ),
    short="Su Jianlin, 4 May 2025, spaces.ac.cn/archives/10907",
    setting=(
        "0.8B to 1.2B parameters, 16B tokens in steps of 1M, length 4,096, Muon, one seed, corpus "
        "and learning rate not given"
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

# RoPER is QKVO-RoPE; it was compared with RoPE (QK-RoPE).
ROPER = Published(
    source=(
        "Georges Harik and Varuna Jayasiri, “Rotary Positional Embeddings with Relative distances "
        "(RoPER)”, https://research.labml.ai/RoPER.html"
    ),
    relations=(("qkvo_rope", ">", "qk_rope"),),
)

# From docs/references.md; section 8 of docs/protocol.md says which of its averages these are.
COPY_REPEAT = Published(
    source=(
        "Georges Harik and Varuna Jayasiri, labml_nn/transformers/rope/value_pe/experiments/"
        "results.ipynb at commit 3582cc97 of "
        "https://github.com/labmlai/annotated_deep_learning_paper_implementations"
    ),
    short="Harik and Jayasiri, June 2022, the notebook of copy_repeat",
    setting=(
        "three layers of width 128, ten runs each, last batches of 33.5M tokens; values were "
        "rotated twice, and outputs back once"
    ),
    losses={"qkvo_rope": 0.319, "qk_rope": 0.330},
    relations=ROPER.relations,
)
# By data.kind.
TASKS = {"repeats": COPY_REPEAT, "addition": ROPER, "copy": ROPER}


def about(runs: Sequence[Run], keys: Sequence[str]) -> Published | None:
    """Return what was published about rows that these factors distinguish, or None."""
    # The published runs started from random weights.
    if any(run.config.init_weights for run in runs):
        return None
    kinds = {run.config.data.kind for run in runs}
    if len(kinds) == 1 and list(keys) == ["pe"] and TASKS.keys() >= kinds:
        return TASKS[kinds.pop()]
    if any(run.config.data.task or run.config.train.objective != "causal" for run in runs):
        return None
    is_sequel = all(run.config.model.name in SEQUEL_MODELS for run in runs)
    if list(keys) == ["pe"]:
        is_softmax = all(isinstance(run.config.attn, SoftmaxConfig) for run in runs)
        return TABLE if is_softmax and not is_sequel else None
    return SEQUEL if list(keys) == [ROW] and is_sequel else None
