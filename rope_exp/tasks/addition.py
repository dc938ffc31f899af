"""Addition: predict the sum of two numbers, as in "123+4567=4690;".

RoPER, which also rotates values, was tested on this task (Harik and labml.ai). As there, several
sums are packed into a row, so that they begin anywhere.

In the order "reversed", both operands and the sum are written from the least significant digit on:
"321+7654=0964;" (Y. Zhou et al. 2024, McLeish et al. 2024). A digit of the sum then needs only the
carry of the digit before, and the distances to the two digits that it adds are constant.

No pair of numbers, in either order, is both trained and tested: a hash holds out one in eight of
the pairs up to 6 digits. The exception is pairs of one-digit numbers, which are few.
"""

import hashlib
from collections.abc import Iterable

from rope_exp.corpus import TEST, TRAIN, TaskSpec
from rope_exp.sections import DataConfig
from rope_exp.tasks._rows import END, LONGER, PAD, Draws, Example, Rows, pack, stack

# The fewest and the most digits of an operand.
DIGITS = {TRAIN: (1, 6), TEST: (1, 6), LONGER: (7, 10)}

SPEC = TaskSpec(
    tokens="0123456789+=" + END + PAD,
    least_seq_len=33,
    splits=tuple(DIGITS),
    key="order",
    span="digits of the longer number",
    bins=tuple(range(1, 11)),
)


def rows(data: DataConfig, seed: int, split: str, indices: Iterable[int], seq_len: int) -> Rows:
    """Return rows of sums, the same in both orders; a span is the digits of the longer operand."""
    fewest, most = DIGITS[split]
    step = 1 if data.order == "plain" else -1

    def number(draws: Draws, digits: int) -> int:
        # The first digit is not 0, unless it is the only one.
        least = 10 ** (digits - 1) if digits > 1 else 0
        return least + draws.below(10**digits - least)

    def draw(draws: Draws) -> Example:
        digits_a = fewest + draws.below(most - fewest + 1)
        digits_b = fewest + draws.below(most - fewest + 1)
        # Draw digits until the pair belongs to the split.
        while True:
            a = number(draws, digits_a)
            b = number(draws, digits_b)
            is_shared = max(a, b) < 10
            if split == LONGER or is_shared or is_held_out(a, b) == (split == TEST):
                question = f"{str(a)[::step]}+{str(b)[::step]}="
                return Example(question, str(a + b)[::step] + END, span=len(str(max(a, b))))

    # The operands, a sum with one digit more, and +, = and END.
    longest = 3 * most + 4
    packed = []
    for index in indices:
        draws = Draws(seed, f"addition {split}", index)
        packed.append(pack(draws, draw, longest, seq_len + 1))
    return stack(packed, SPEC.tokens)


def is_held_out(a: int, b: int) -> bool:
    """Return whether a pair, unless it is shared, belongs to the test, in either order."""
    pair = f"{min(a, b)}+{max(a, b)}"
    digest = hashlib.blake2b(pair.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % 8 == 0
