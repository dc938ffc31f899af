"""Checks that a run supports the probes it asks for."""

import math

from rope_exp.config.kinds import AttnConfig
from rope_exp.config.sections import DataConfig, ModelConfig, TrainConfig
from rope_exp.config.variants import PAIRS, PeConfig
from rope_exp.system.errors import ConfigError


def check_probes(
    train: TrainConfig, model: ModelConfig, attn: AttnConfig, pe: PeConfig, data: DataConfig
) -> None:
    """Refuse a probe that the finished model cannot answer.

    Raises:
        ConfigError: it names the probe's requirement.
    """
    supports = {"distance": attn.keeps_keys, "floors": attn.has_floors}
    reasons = {
        probe: f"attn.kind={attn.kind} cannot be asked for {probe}"
        for probe, is_supported in supports.items()
        if not is_supported
    }
    if train.seq_len < 2:
        reasons.setdefault("distance", "distance needs train.seq_len of at least 2")
    if train.objective != "causal" or train.seq_len < 4:
        reasons["repeat"] = "repeat needs train.objective=causal and train.seq_len of at least 4"
    if model.window_layers is not None:
        reasons["distance"] = "distance has one uniform baseline: leave model.window_layers out"
    if data.document_mask:
        for probe in ("distance", "repeat"):
            reasons[probe] = f"{probe} would read across documents; no data.document_mask"
    if not pe.trainable:
        reasons["drift"] = "drift needs frequencies that are learned: pe.trainable"
    if not model.token_shift:
        reasons["token_shift"] = "token_shift needs mu, which is learned: model.token_shift"
    extension = _why_not_extended(train, pe, attn.rotary_dim(model))
    if extension:
        reasons["extension"] = f"extension needs {extension}"

    for probe in train.probes:
        if probe in reasons:
            raise ConfigError("train.probes", list(train.probes), reasons[probe])


def _why_not_extended(train: TrainConfig, pe: PeConfig, rotary_dim: int) -> str | None:
    """Return the first unmet requirement of frequencies for longer contexts, or None."""
    if not pe.rotate:
        return "at least one site in pe.rotate"
    if pe.input == "learned":
        return "positions past the trained length, which pe.input=learned has not"
    rotating = [pair for pair in PAIRS if {*pair} & {*pe.rotate}]
    if any(pe.num_features(rotary_dim, pair) < 4 for pair in rotating):
        return "two pairs of features that rotate, a first and a last"
    if train.seq_len <= math.tau:
        return "train.seq_len of at least 7, in which a pair can turn once"
    return None
