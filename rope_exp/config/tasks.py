"""Generated data: what a config must know of each kind before any is made. No torch, no numpy.

The generators themselves are in data/tasks, and hold to what stands here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TEXT_UNIT = "nats per token"  # of losses on text
ANSWER_UNIT = "nats per answer token"
SQUARES = "mean squared error"

# The queries of a row of spikes, and the dimensions of what is to be predicted at each.
NUM_QUERIES = 16
NUM_DIMS = 2


@dataclass(frozen=True)
class TaskFacts:
    """What is known of a kind of generated data.

    Attributes:
        vocab_size: how many tokens it has.
        least_seq_len: the least T whose rows hold its longest examples.
        unit: of its loss.
        objective: what a model is trained for.
        probe: what a finished model can be asked.
        key: the one key of `data` that is its own; empty: none.
        span: what the span of an example counts; empty: there are no examples to be right or wrong.
        bins: the first span of each bin by which a table tells matches.
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
        """How many real numbers are predicted at a place; None: one of the tokens."""
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
# What can be asked of models of generated data alone.
TASK_PROBES = tuple(dict.fromkeys(task.probe for task in TASKS.values()))
