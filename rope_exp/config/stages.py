"""Stages of a run on sequences of different lengths, as in RoFormer's training.

`train.stages` lists them, each as [length, steps] or [length, steps, sequences]. Without the third
number a step of the stage has global_batch_size x seq_len tokens; RoFormer fixed the number of
sequences instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rope_exp.config.schema import Count, rule
from rope_exp.system.errors import ConfigError

Listed = tuple[tuple[int, ...], ...]
Stages = Annotated[
    tuple[tuple[Count, ...], ...],
    rule(
        "must be a list of stages, each [length, steps] or [length, steps, sequences], in whole "
        "numbers of at least 1",
        lambda stages: stages and all(len(stage) in (2, 3) for stage in stages),
    ),
]


@dataclass(frozen=True)
class Stage:
    """Steps on sequences of one length.

    Attributes:
        seq_len: T.
        num_steps: of this stage.
        batch_size: B, the sequences of a step, over all processes.
        steps_before, samples_before, tokens_before: of all earlier stages; a sample is one
            sequence of a step.
    """

    seq_len: int
    num_steps: int
    batch_size: int
    steps_before: int = 0
    samples_before: int = 0
    tokens_before: int = 0

    @property
    def last_step(self) -> int:
        """Its last step, counted from 1 over the whole run."""
        return self.steps_before + self.num_steps

    @property
    def tokens_per_step(self) -> int:
        """The tokens of one step."""
        return self.batch_size * self.seq_len

    @property
    def num_tokens(self) -> int:
        """The tokens of all its steps."""
        return self.num_steps * self.tokens_per_step

    def samples(self, step: int) -> range:
        """Return the numbers of the samples of one of the stage's steps, over the whole run."""
        first = self.samples_before + (step - 1 - self.steps_before) * self.batch_size
        return range(first, first + self.batch_size)

    def tokens_until(self, step: int) -> int:
        """Return the tokens of the run up to and including one of the stage's steps."""
        return self.tokens_before + (step - self.steps_before) * self.tokens_per_step


def make_stages(listed: Listed, tokens_per_step: int) -> tuple[Stage, ...]:
    """Build stages from their list.

    Args:
        tokens_per_step: of a stage without its own number of sequences.
    Raises:
        ConfigError: such a stage's length does not divide them.
    """
    stages: list[Stage] = []
    for seq_len, num_steps, *own in listed:
        batch_size, rest = divmod(tokens_per_step, seq_len)
        if not own and rest:
            raise ConfigError(
                "train.stages",
                listed,
                f"sequences of {seq_len} do not divide the {tokens_per_step} tokens of a step "
                f"(train.global_batch_size x train.seq_len); or say how many sequences a step has, "
                f"as in [{seq_len},{num_steps},{max(batch_size, 1)}]",
            )
        if own:
            [batch_size] = own

        before = stages[-1] if stages else Stage(seq_len, 0, batch_size)
        stages.append(
            Stage(
                seq_len,
                num_steps,
                batch_size,
                steps_before=before.last_step,
                samples_before=before.samples_before + before.num_steps * before.batch_size,
                tokens_before=before.tokens_before + before.num_tokens,
            )
        )
    return tuple(stages)


def shortest(stages: Sequence[Stage], seq_len: int, tokens_per_step: int) -> Listed | None:
    """Return the canonical list of stages; None for a single plain stage of `seq_len`.

    Equal neighbours are merged, and sequences are given only if they do not follow from the tokens.
    """
    listed: list[tuple[int, ...]] = []
    for stage in stages:
        own = (stage.batch_size,) if stage.tokens_per_step != tokens_per_step else ()
        num_steps = stage.num_steps
        if listed and (listed[-1][0], listed[-1][2:]) == (stage.seq_len, own):
            num_steps += listed.pop()[1]
        listed.append((stage.seq_len, num_steps, *own))

    is_plain = len(listed) == 1 and listed[0][0] == seq_len and len(listed[0]) == 2
    return None if is_plain else tuple(listed)


class Budget:
    """Quantities derived from the keys of a run's budget; the base class of `TrainConfig`.

    Raises:
        ConfigError: invalid stages, or stages whose steps do not add up to num_steps.
    """

    num_steps: int
    global_batch_size: int
    micro_batch_size: int | None
    seq_len: int
    stages: Listed | None

    def __post_init__(self) -> None:
        if self.stages is None:
            return

        num_steps = sum(stage.num_steps for stage in self.staged)
        if num_steps != self.num_steps:
            raise ConfigError(
                "train.num_steps",
                self.num_steps,
                f"must be the {num_steps} steps of train.stages",
            )
        one_spelling = shortest(self.staged, self.seq_len, self.tokens_per_step)
        object.__setattr__(self, "stages", one_spelling)

    @property
    def tokens_per_step(self) -> int:
        """global_batch_size x seq_len, the tokens of every step unless a stage sets its own."""
        return self.global_batch_size * self.seq_len

    @property
    def staged(self) -> tuple[Stage, ...]:
        """The stages in order; a single one if `stages` is null."""
        if self.stages is None:
            return (Stage(self.seq_len, self.num_steps, self.global_batch_size),)
        return make_stages(self.stages, self.tokens_per_step)

    def stage_at(self, step: int) -> Stage:
        """Return the stage of a step, counted from 1; past the end, the last."""
        *stages, last = self.staged
        return next((stage for stage in stages if step <= stage.last_step), last)

    @property
    def longest(self) -> int:
        """The length of the longest sequences in training or evaluation."""
        return max(self.seq_len, *(stage.seq_len for stage in self.staged))

    def tokens_until(self, step: int) -> int:
        """Return the number of tokens up to and including a step; 0 at step 0."""
        return self.stage_at(step).tokens_until(step)

    @property
    def num_tokens(self) -> int:
        """The tokens of the whole run."""
        return self.tokens_until(self.num_steps)

    def rows_at_once(self, share: int, seq_len: int) -> int:
        """Return the sequences per micro-batch for a process's `share` of sequences of one length.

        The share is split into the fewest micro-batches with no more tokens than micro_batch_size
        sequences of train.seq_len; the last may be smaller.
        """
        if self.micro_batch_size is None:
            return share
        most = max(1, self.micro_batch_size * self.seq_len // seq_len)
        num_parts = -(-share // most)
        return -(-share // num_parts)
