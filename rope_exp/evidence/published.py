"""The published table, which the rows here stand beside, and the one home of its numbers.

Losses at about 1B parameters on a LLaMA-like decoder. The source gives no corpus, learning rate,
step count, length or seed, one run a variant and no error bars, so its last digits are not to be
leaned on. Nobody has published a second measurement. Its keys are the nine variants.
"""

from collections.abc import Mapping

SOURCE = (
    "Su Jianlin, “Transformer升级之路：19、第二类旋转位置编码”, 18 April 2025, "
    "https://spaces.ac.cn/archives/10862"
)
SOURCE_SHORT = "Su Jianlin, 18 April 2025, spaces.ac.cn/archives/10862"  # for fonts without Chinese

# ">" is the source's word for better, "≈" for too close to tell.
ORDER = "QK ≈ QKVO > K ≈ VO > QKV > NoPE > Q/V/O"

# The same, pair by pair: what stands between the neighbours of that order.
RELATIONS = (
    ("qk_rope", "≈", "qkvo_rope"),
    ("qkvo_rope", ">", "k_rope"),
    ("k_rope", "≈", "vo_rope"),
    ("vo_rope", ">", "qkv_rope"),
    ("qkv_rope", ">", "nope"),
    ("nope", ">", "o_rope"),
    ("nope", ">", "q_rope"),
    ("nope", ">", "v_rope"),
)

# The variant that differences are against, unless told otherwise: the standard one.
REFERENCE = "qk_rope"

# In nats per token, by PeConfig.label.
LOSSES: Mapping[str, float] = {
    "qk_rope": 2.712,
    "qkvo_rope": 2.719,
    "k_rope": 2.769,
    "vo_rope": 2.770,
    "qkv_rope": 2.783,
    "nope": 2.795,
    "o_rope": 2.841,
    "q_rope": 2.851,
    "v_rope": 2.856,
}
