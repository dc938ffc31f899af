"""Copying: predict a random string again after a separator, as in "bca|bca;".

The alphabet is small on purpose. A string of distinct letters can be copied by finding the letter
written last and taking the next one, without knowing its position. With repeated letters this
fails, and strings longer than the trained ones become hard (H. Zhou et al. 2023). RoPER was tested
on a similar task (Harik and labml.ai): there, stretches of 16 letters from an alphabet of four are
repeated from anywhere in a growing string; here, the copied strings have all lengths.

Strings have 1 to 32 letters in training and in the test, 33 to 64 in the longer test, uniformly.
Several are packed into a row, so that they begin anywhere. Training and test use separate random
streams; short strings are on both sides, since there are only 4^L of length L.
"""

from dataclasses import dataclass

from rope_exp.rows import END, LONGER, PAD, TEST, TRAIN, Draws, Example, Row, Task, pack

LETTERS = "abcd"
SEPARATOR = "|"
VOCABULARY = LETTERS + SEPARATOR + END + PAD

# The fewest and the most letters of a string.
LENGTHS = {TRAIN: (1, 32), TEST: (1, 32), LONGER: (33, 64)}


@dataclass(frozen=True)
class Copying(Task):
    """Rows of strings and their copies; an example's span is the length of its string."""

    vocabulary = VOCABULARY
    splits = (TRAIN, TEST, LONGER)

    seq_len: int = 256

    def _row(self, split: str, index: int) -> Row:
        fewest, most = LENGTHS[split]

        def draw(draws: Draws) -> Example:
            length = fewest + draws.below(most - fewest + 1)
            letters = draws.many_below(len(LETTERS), length)
            string = "".join(LETTERS[letter] for letter in letters)
            return Example(string + SEPARATOR, string + END, span=length)

        draws = Draws(self.seed, f"copying {split}", index)
        return pack(draws, draw, longest(split), self.seq_len + 1)


def longest(split: str) -> int:
    """Return the number of characters of the split's longest string and its copy."""
    return 2 * LENGTHS[split][1] + len(SEPARATOR) + len(END)
