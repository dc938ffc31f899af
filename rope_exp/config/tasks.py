"""Facts about each kind of generated data that a config needs. Imports neither torch nor numpy.

The generators are in data/tasks and conform to these facts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TEXT_UNIT = "nats per token"  # of losses on text
ANSWER_UNIT = "nats per answer token"
SQUARES = "mean squared error"

# Queries in a row of spikes, and dimensions of the prediction at each.
NUM_QUERIES = 16
NUM_DIMS = 2


@dataclass(frozen=True)
class TaskFacts:
    """Facts about a kind of generated data.

    Attributes:
        vocab_size: the number of its tokens.
        least_seq_len: the smallest T at which rows hold its longest examples.
        unit: of its loss.
        objective: of training.
        probe: the probe of a finished model.
        key: the key of `data` that only this kind has; empty: none.
        span: the unit of an example's span; empty: there are no examples to be right or wrong.
        bins: the first span of each bin in a table of matches.
    """

    vocab_size: int
    least_seq_len: int
    unit: str = ANSWER_UNIT
    objective: Literal["causal", "regression"] = "causal"
    probe: str = "answers"
    key: str = ""
    span: str = ""
    bins: tuple[int, ...] = ()

    @property
    def num_outputs(self) -> int | None:
        """The count of real numbers predicted at a place; None: a token is predicted."""
        return NUM_DIMS if self.objective == "regression" else None


TASKS: Mapping[str, TaskFacts] = {
    "addition": TaskFacts(
        vocab_size=14,
        least_seq_len=33,
        key="order",
        span="digits of the longer number",
        bins=tuple(range(1, 11)),
    ),
    "copy": TaskFacts(
        vocab_size=7,
        least_seq_len=129,
        span="letters of the string",
        bins=(1, 2, 3, 5, 9, 17, 33, 49),
    ),
    "repeats": TaskFacts(
        vocab_size=5,
        least_seq_len=43,
        span="letters back to the stretch",
        bins=(17, *(16 << octave for octave in range(1, 18))),
    ),
    "retrieval": TaskFacts(
        vocab_size=63,
        # Another pair's needle and question rule out at most 16 places of a needle and its
        # question: 3 for needle and needle, twice 4 for needle and question, 5 for question and
        # question. A distance below T / 2 leaves more than T / 2 places, and 7 other pairs may
        # take 112 of them.
        least_seq_len=224,
        span="tokens from the needle to its question",
        bins=tuple(4 << octave for octave in range(20)),
    ),
    "spikes": TaskFacts(
        vocab_size=18,
        least_seq_len=NUM_QUERIES + 1,
        unit=SQUARES,
        objective="regression",
        probe="fit",
        key="period",
    ),
}
# Probes for models of generated data only.
TASK_PROBES = tuple(dict.fromkeys(task.probe for task in TASKS.values()))
