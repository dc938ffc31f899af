"""Probes of a finished model on generated data: the correctness of its answers.

- answers: for each split but the trained one, the number of examples of each span, the number
  answered without a wrong token, and the loss. Each token is predicted from the true tokens before
  it, which gives the same exact matches as greedy decoding (rows.py);
- fit: the explained variance of real numbers, R^2 = 1 - sum of squared errors / sum of squared
  deviations from their mean, over all queries of all rows: the mean over dimensions, each
  dimension, and the mean squared error at each query.

Each split is read in as many rows as there are held-out rows, in the run's training precision.

Shapes: N rows, B of a micro-batch, T positions, V vocabulary, Q queries, D dimensions.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rope_exp.batches import NO_TARGET, Batch
from rope_exp.config import RunConfig
from rope_exp.corpora import VALIDATION
from rope_exp.decoder import Decoder
from rope_exp.evaluate import Inputs, Probes, rounded
from rope_exp.generated import DataSet, Generated
from rope_exp.kernels import wide
from rope_exp.probes._probes import Asking, Questions
from rope_exp.rows import TEST, TRAIN, Rows
from rope_exp.sections import TrainConfig
from rope_exp.sources import read


class TaskQuestions(Asking):
    """The probes of a model of generated data.

    Args:
        data: the data on which it was trained.
        micro_batch_size: the number of rows at a time.
    """

    def __init__(
        self,
        decoder: Decoder,
        data: Generated,
        train: TrainConfig,
        micro_batch_size: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(decoder, should_stop)
        self.data = data
        self.count = train.eval_sequences
        self.micro_batch_size = micro_batch_size

    def answers(self) -> Probes:
        """Return exact matches by span, and the loss, for each split but the trained one."""
        found = {}
        splits = self.data.task(0).splits
        for split in (each for each in splits if each != TRAIN):
            rows = self.data.rows(split, range(self.count))
            assert isinstance(rows, Rows)
            batch = self.data.batch(rows)
            right_NT, nats_NT = np.split(self._outputs(batch, _right_and_nats), 2, axis=1)
            span_E, is_match_E = rows.exact_matches(right_NT.astype(bool))
            spans, counts = np.unique(span_E, return_counts=True)
            found[split] = {
                "span": spans.tolist(),
                "count": counts.tolist(),
                "right": [int(is_match_E[span_E == span].sum()) for span in spans],
                "loss": rounded([nats_NT.sum() / batch.num_targets])[0],
            }
        return found

    def fit(self) -> Probes:
        """Return R^2 and the mean squared error on the held-out rows."""
        batch = self.data.batch(self.data.rows(TEST, range(self.count)))
        outputs_NQD = self._outputs(batch)
        truth_NQD = batch.target_BP.astype(np.float64)
        error_NQD = (outputs_NQD - truth_NQD) ** 2
        spread_D = ((truth_NQD - truth_NQD.mean(axis=(0, 1))) ** 2).sum(axis=(0, 1))
        r2_D = 1 - error_NQD.sum(axis=(0, 1)) / spread_D
        return {
            "r2": rounded([r2_D.mean()])[0],
            "r2_of_dims": rounded(r2_D),
            "error_of_queries": rounded(error_NQD.mean(axis=(0, 2))),
        }

    def _outputs(
        self, batch: Batch, of: Callable[[Tensor, Inputs], Tensor] = lambda found, _: found
    ) -> NDArray[np.float64]:
        """Return the decoder's outputs for all rows, or `of` applied to them, by micro-batches."""
        parts = []
        for inputs in self.batches(batch, self.micro_batch_size):
            found = self.decoder(inputs.ids_BT, **inputs.further)
            parts.append(of(found, inputs).double().cpu())
        return np.asarray(torch.cat(parts).numpy())


def make_questions(
    decoder: Decoder,
    data: DataSet,
    config: RunConfig,
    micro_batch_size: int,
    should_stop: Callable[[], bool],
    crossings: Mapping[str, Tensor],
) -> Questions | TaskQuestions:
    """Return the probes of a model that suit its training data."""
    train = config.train
    if isinstance(data, Generated):
        return TaskQuestions(decoder, data, train, micro_batch_size, should_stop)
    return Questions(
        decoder,
        data.tokens[VALIDATION],
        train,
        micro_batch_size,
        should_stop,
        read=partial(read, config, data),
        crossings=crossings,
    )


def _right_and_nats(logits_BTV: Tensor, inputs: Inputs) -> Tensor:
    """Return, as [B, 2 T], whether each prediction is right, and -log p; 0 without a target."""
    logits_BTV = wide(logits_BTV)
    right_BT = logits_BTV.argmax(dim=-1) == inputs.target_BP
    nats_BT = F.cross_entropy(
        logits_BTV.mT, inputs.target_BP, reduction="none", ignore_index=NO_TARGET
    )
    return torch.cat([right_BT.to(nats_BT.dtype), nats_BT], dim=1)
