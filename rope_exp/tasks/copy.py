"""Copying: predict a random string again after a separator, as in "bca|bca;".

A string of distinct letters can be copied by finding the letter written last and taking the next
one, without knowing its position. In this small alphabet letters repeat, so that fails, and strings
longer than the trained ones become hard (H. Zhou et al. 2023).

Lengths are uniform, and strings are packed into rows. Short strings are both trained and tested,
since there are only 4^L of length L.
"""

from collections.abc import Iterable

from rope_exp.corpus import TEST, TRAIN, TaskSpec
from rope_exp.sections import DataConfig
from rope_exp.tasks._rows import END, LONGER, PAD, Draws, Example, Rows, pack, stack

LETTERS = "abcd"
# The fewest and the most letters of a string.
LENGTHS = {TRAIN: (1, 32), TEST: (1, 32), LONGER: (33, 64)}

SPEC = TaskSpec(
    tokens=LETTERS + "|" + END + PAD,
    least_seq_len=129,
    splits=tuple(LENGTHS),
    span="letters of the string",
    bins=(1, 2, 3, 5, 9, 17, 33, 49),
)


def rows(data: DataConfig, seed: int, split: str, indices: Iterable[int], seq_len: int) -> Rows:
    """Return rows of strings and their copies; an example's span is the length of its string."""
    fewest, most = LENGTHS[split]

    def draw(draws: Draws) -> Example:
        length = fewest + draws.below(most - fewest + 1)
        string = "".join(LETTERS[letter] for letter in draws.many_below(len(LETTERS), length))
        return Example(string + "|", string + END, span=length)

    # A string and its copy, with | and END.
    longest = 2 * most + 2
    packed = []
    for index in indices:
        draws = Draws(seed, f"copying {split}", index)
        packed.append(pack(draws, draw, longest, seq_len + 1))
    return stack(packed, SPEC.tokens)
