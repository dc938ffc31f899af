"""The stages of a run: successive steps on sequences of one length."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class StageSpec(NamedTuple):
    """An entry of train.stages: [length, steps] or [length, steps, sequences]."""

    seq_len: int
    num_steps: int
    # Sequences of a step; None: as many as have `tokens_per_step` tokens together.
    num_sequences: int | None = None

    def to_list(self) -> tuple[int, ...]:
        """Return the entry as a config spells it."""
        if self.num_sequences is None:
            return self.seq_len, self.num_steps
        return self.seq_len, self.num_steps, self.num_sequences


@dataclass(frozen=True)
class Stage:
    """Steps on sequences of one length; a sample is one sequence of a step."""

    seq_len: int
    # B, over all processes.
    batch_size: int
    # The numbers of its steps, from 1.
    steps: range
    # The samples of all earlier stages.
    samples_before: int

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    @property
    def num_tokens(self) -> int:
        return len(self.steps) * self.tokens_per_step

    def samples(self, step: int) -> range:
        """Return the numbers of the samples of one of the stage's steps, over the whole run."""
        first = self.samples_before + (step - self.steps[0]) * self.batch_size
        return range(first, first + self.batch_size)


def merge_specs(entries: Iterable[Sequence[int]], tokens_per_step: int) -> list[StageSpec]:
    """Return the entries of train.stages in the one way that they are spelled.

    A number of sequences that `tokens_per_step` implies is left out, and neighbours that differ in
    their number of steps alone become one stage.
    """
    merged: list[StageSpec] = []
    for entry in entries:
        spec = StageSpec(*entry)
        if spec.num_sequences and spec.num_sequences * spec.seq_len == tokens_per_step:
            spec = spec._replace(num_sequences=None)
        if merged and merged[-1]._replace(num_steps=spec.num_steps) == spec:
            earlier = merged.pop()
            spec = spec._replace(num_steps=earlier.num_steps + spec.num_steps)
        merged.append(spec)
    return merged


def number_stages(specs: Iterable[StageSpec], tokens_per_step: int) -> tuple[Stage, ...]:
    """Return the stages in order, with the numbers of their steps and samples over the run."""
    stages = []
    first_step = 1
    num_samples = 0
    for spec in specs:
        batch_size = spec.num_sequences
        if batch_size is None:
            batch_size = tokens_per_step // spec.seq_len
        steps = range(first_step, first_step + spec.num_steps)
        stages.append(Stage(spec.seq_len, batch_size, steps, num_samples))
        first_step += spec.num_steps
        num_samples += spec.num_steps * batch_size
    return tuple(stages)
