"""The number of predicted places of a sequence, and checks of the training objective."""

from rope_exp.config.kinds import AttnConfig
from rope_exp.config.sections import ModelConfig, TrainConfig
from rope_exp.config.tasks import NUM_QUERIES
from rope_exp.system.errors import ConfigError

# Share of a sequence's tokens that mlm predicts (Devlin et al. 2019).
MASKED_SHARE = 0.15


def num_predicted(train: TrainConfig, seq_len: int) -> int:
    """Return P, the number of predicted places of a sequence.

    causal: every place; mlm: 15 %, rounded, at least one; regression: the queries.
    """
    match train.objective:
        case "causal":
            return seq_len
        case "mlm":
            return max(1, round(MASKED_SHARE * seq_len))
        case "regression":
            return NUM_QUERIES


def check_objective(train: TrainConfig, model: ModelConfig, attn: AttnConfig) -> None:
    """Refuse a bidirectional objective if attention cannot look both ways.

    Raises:
        ConfigError: attention keeps a state, has a window, or mixes in the previous token.
    """
    if model.token_shift and train.objective != "causal":
        raise ConfigError(
            "model.token_shift",
            True,
            f"mixes in the token before, and train.objective={train.objective} looks both ways; "
            "train.objective=causal does not, and here leave false",
        )
    if train.objective == "causal":
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
