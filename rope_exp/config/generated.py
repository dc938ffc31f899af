"""Checks that a run's settings fit its data, generated or text, before anything runs."""

from rope_exp.config.sections import DataConfig, ModelConfig, TokenizerConfig, TrainConfig
from rope_exp.config.tasks import TASK_PROBES
from rope_exp.config.variants import PeConfig
from rope_exp.system.errors import ConfigError


def check_generated(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    train: TrainConfig,
    model: ModelConfig,
    pe: PeConfig,
) -> None:
    """Refuse a run that does not fit its data set.

    Raises:
        ConfigError: naming the key.
    """
    task = data.task
    if task is None:
        _check_text(tokenizer, train)
        return

    name = f"data={data.kind}"
    if tokenizer.kind != "task":
        allowed = f"{name} has tokens of its own: leave out tokenizer=..."
        raise ConfigError("tokenizer.kind", tokenizer.kind, allowed)
    if train.objective != task.objective:
        allowed = f"must be {task.objective} for {name}"
        raise ConfigError("train.objective", train.objective, allowed)
    if train.stages is not None:
        allowed = f"{name} has rows of one length; leave null"
        raise ConfigError("train.stages", train.stages, allowed)
    if train.seq_len < task.least_seq_len:
        allowed = f"must be at least {task.least_seq_len} for {name}"
        raise ConfigError("train.seq_len", train.seq_len, allowed)
    if not {task.probe}.issuperset(train.probes):
        allowed = f"{name} can be asked for {task.probe} alone"
        raise ConfigError("train.probes", list(train.probes), allowed)
    if task.num_outputs is not None:
        _check_regression(model, pe, name)


def _check_text(tokenizer: TokenizerConfig, train: TrainConfig) -> None:
    """Refuse settings that only generated data support, for text."""
    if tokenizer.kind == "task":
        allowed = "is of generated data, such as data=addition, which choose it themselves"
        raise ConfigError("tokenizer.kind", "task", allowed)
    if train.objective == "regression":
        raise ConfigError("train.objective", "regression", "is for data=spikes alone")
    if not set(TASK_PROBES).isdisjoint(train.probes):
        allowed = f"{' and '.join(TASK_PROBES)} are asked of generated data, such as data=addition"
        raise ConfigError("train.probes", list(train.probes), allowed)


def _check_regression(model: ModelConfig, pe: PeConfig, name: str) -> None:
    """Refuse settings that cannot use real-valued times or predict real numbers."""
    if model.tie_word_embeddings:
        allowed = f"{name} predicts no tokens, whose embeddings could be shared; leave false"
        raise ConfigError("model.tie_word_embeddings", True, allowed)
    if pe.bias != "none":
        allowed = f"goes by places in the row, and positions of {name} are times; leave none"
        raise ConfigError("pe.bias", pe.bias, allowed)
    if pe.input == "learned":
        allowed = f"has no rows for positions between whole ones, as those of {name} are"
        raise ConfigError("pe.input", pe.input, allowed)
