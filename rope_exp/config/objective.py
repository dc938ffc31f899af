"""What a model is trained to predict: each next token, or hidden ones from both sides (mlm)."""

from rope_exp.config.kinds import AttnConfig
from rope_exp.config.sections import ModelConfig, TrainConfig
from rope_exp.system.errors import ConfigError

# Of a sequence's tokens, how many are predicted under mlm (Devlin et al. 2019).
MASKED_SHARE = 0.15


def num_predicted(train: TrainConfig, seq_len: int) -> int:
    """Return P, how many tokens of a sequence are predicted.

    Under mlm 15 %, rounded, and at least one; else each.
    """
    return max(1, round(MASKED_SHARE * seq_len)) if train.objective == "mlm" else seq_len


def check_objective(train: TrainConfig, model: ModelConfig, attn: AttnConfig) -> None:
    """Refuse mlm where attention cannot look both ways.

    Raises:
        ConfigError: attention keeps a state, or has a window.
    """
    if train.objective != "mlm":
        return
    if not attn.keeps_keys:
        raise ConfigError(
            "train.objective",
            train.objective,
            f"looks both ways, and the state that attn.kind={attn.kind} keeps goes one way alone",
        )
    if model.window is not None:
        raise ConfigError(
            "model.window",
            model.window,
            f"is of the keys before a query, and train.objective={train.objective} looks both ways",
        )
