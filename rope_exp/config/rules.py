"""What a run's config may not combine: rules between keys, of one section or of several."""

import math
from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING

from rope_exp.config.learning import WsdConfig
from rope_exp.config.schema import Rule
from rope_exp.config.tasks import TASK_PROBES
from rope_exp.config.variants import EVERY, OUR_NAMES, PAIRS, source_sha256

if TYPE_CHECKING:
    from rope_exp.config.run import RunConfig

MAX_POSITION = 2**24  # float32 represents all integers up to this one


def rules(config: "RunConfig") -> Iterator[Rule]:
    """Yield every rule of a config. A rule may rely on those before it."""
    kind = config.data.kind
    for name in ("pe", "model", "data", "tokenizer"):
        section = getattr(config, name)
        for field in fields(section):
            key = f"{name}.{field.name}"
            departs = getattr(section, field.name) != field.default
            kinds = field.metadata.get("kinds", (kind,))
            yield departs and kind not in kinds, key, f"is for data={' or '.join(kinds)} alone"
            for needed, allowed in field.metadata.get("needs", {}).items():
                yield departs and not attrgetter(needed)(config), key, allowed

    yield from _of_data(config)
    yield from _of_budget(config)
    yield from _of_attention(config)
    yield from _of_probes(config)
    yield from _of_positions(config)


def _of_data(config: "RunConfig") -> Iterator[Rule]:
    data = config.data
    has_path = data.kind in ("files", "hub")
    allowed = "must name the corpus of data=files and data=hub; no other has a path"
    yield has_path != (data.path is not None), "data.path", allowed
    allowed = "must name the column that holds the text"
    yield has_path and not data.text_column, "data.text_column", allowed

    tokenizer = config.tokenizer
    kind = tokenizer.kind
    for key in ("tokenizer.vocab_size", "tokenizer.train_bytes"):
        allowed = "must be set for a tokenizer that is trained on the corpus"
        yield kind == "bpe" and attrgetter(key)(config) is None, key, allowed
    allowed = "is given by tokenizer={0.tokenizer.name}; leave null"
    yield kind != "bpe" and tokenizer.vocab_size is not None, "tokenizer.vocab_size", allowed
    allowed = "must be set for tokenizer=pretrained, and only there"
    yield (kind == "pretrained") != (tokenizer.path is not None), "tokenizer.path", allowed
    allowed = "is of generated data, such as data=addition, which choose it themselves"
    yield kind == "task" and not data.task, "tokenizer.kind", allowed
    allowed = "data={0.data.kind} has tokens of its own: leave out tokenizer=..."
    yield kind != "task" and data.task, "tokenizer.kind", allowed


def _of_budget(config: "RunConfig") -> Iterator[Rule]:
    train = config.train
    for seq_len, num_steps, *rows in train.stages or ():
        batch_size, rest = divmod(train.tokens_per_step, seq_len)
        allowed = (
            f"sequences of {seq_len} do not divide the {train.tokens_per_step} tokens of a step "
            "(train.global_batch_size x train.seq_len); or say how many sequences a step has, as "
            f"in [{seq_len},{num_steps},{max(batch_size, 1)}]"
        )
        yield rest and not rows, "train.stages", allowed
    num_steps = sum(stage.num_steps for stage in train.staged)
    allowed = f"must be the {num_steps} steps of train.stages"
    yield num_steps != train.num_steps, "train.num_steps", allowed

    schedule = config.schedule
    if isinstance(schedule, WsdConfig):
        exceeds = schedule.warmup_fraction + schedule.decay_fraction > 1
        yield exceeds, "schedule.warmup_fraction", "warm-up and decay exceed the run"

    if task := config.data.task:
        allowed = "must be {0.data.task.objective} for data={0.data.kind}"
        yield train.objective != task.objective, "train.objective", allowed
        yield train.stages, "train.stages", "data={0.data.kind} has rows of one length; leave null"
        allowed = "must be at least {0.data.task.least_seq_len} for data={0.data.kind}"
        yield train.seq_len < task.least_seq_len, "train.seq_len", allowed
    else:
        yield not config.predicts_tokens, "train.objective", "is for data=spikes alone"


def _of_attention(config: "RunConfig") -> Iterator[Rule]:
    model = config.model
    attn = config.attn
    heads = model.num_attention_heads
    allowed = "must divide model.num_attention_heads={0.model.num_attention_heads}"
    yield heads % model.num_key_value_heads, "model.num_key_value_heads", allowed

    refused = [site for site in config.pe.rotate if site not in attn.sites()]
    can = f"attn.kind={attn.kind} can rotate {' and '.join(attn.sites()) or 'nothing'}"
    allowed = f"{attn.why_not or can}; {' and '.join(refused)} must not stand there"
    yield refused, "pe.rotate", allowed
    if attn.takes_heads:
        allowed = "must divide model.hidden_size={0.model.hidden_size}, or model.head_dim be set"
        is_odd = model.head_dim is None and model.hidden_size % heads
        yield is_odd, "model.num_attention_heads", allowed
    else:
        allowed = "attn.kind={0.attn.kind} has no such heads; leave it equal to "
        is_other = model.num_key_value_heads != heads
        yield is_other, "model.num_key_value_heads", f"{allowed}model.num_attention_heads"
    yield from attn.rules(model)
    allowed = "looks both ways, and the state that attn.kind={0.attn.kind} keeps goes one way alone"
    yield not (config.causal or attn.keeps_keys), "train.objective", allowed


def _of_probes(config: "RunConfig") -> Iterator[Rule]:
    """Yield what a finished model cannot be asked for."""
    data = config.data
    model = config.model
    train = config.train
    pe = config.pe
    attn = config.attn
    rotating = [pair for pair in PAIRS if {*pair} & {*pe.rotate}]
    num_features = [pe.num_features(attn.rotary_dim(model), pair) for pair in rotating]

    # Whether a run lacks what a probe needs, by the sentence about it.
    lacks: dict[str, dict[str, object]] = {
        "floors": {"attn.kind={0.attn.kind} cannot be asked for floors": not attn.has_floors},
        "distance": {
            "attn.kind={0.attn.kind} cannot be asked for distance": not attn.keeps_keys,
            "distance needs train.seq_len of at least 2": train.seq_len < 2,
            "distance has one uniform baseline: no model.window_layers": model.window_layers,
            "distance would read across documents; no data.document_mask": data.document_mask,
        },
        "repeat": {
            "repeat needs train.objective=causal and train.seq_len of at least 4": (
                not config.causal or train.seq_len < 4
            ),
            "repeat would read across documents; no data.document_mask": data.document_mask,
        },
        "drift": {"drift needs frequencies that are learned: pe.trainable": not pe.trainable},
        "token_shift": {
            "token_shift needs mu, which is learned: model.token_shift": not model.token_shift
        },
        "extension": {
            "extension needs at least one site in pe.rotate": not pe.rotate,
            "extension needs positions past the trained length, which pe.input=learned has not": (
                pe.input == "learned"
            ),
            "extension needs two pairs of features that rotate, a first and a last": (
                min(num_features, default=0) < 4
            ),
            "extension needs train.seq_len of at least 7, in which a pair can turn once": (
                train.seq_len <= math.tau
            ),
        },
    }
    for probe in train.probes:
        if data.task:
            allowed = "data={0.data.kind} can be asked for {0.data.task.probe} alone"
            yield probe != data.task.probe, "train.probes", allowed
        else:
            allowed = " and ".join(TASK_PROBES) + " are asked of generated data, such as "
            yield probe in TASK_PROBES, "train.probes", allowed + "data=addition"
        for allowed, is_lacking in lacks.get(probe, {}).items():
            yield is_lacking, "train.probes", allowed


def _of_positions(config: "RunConfig") -> Iterator[Rule]:
    model = config.model
    pe = config.pe
    changed = pe.source is not None and pe.code_sha256 != source_sha256(pe.source)
    yield changed, "pe.source", "was changed: pe.code_sha256 is of another text"
    taken = pe.code is not None and pe.name in OUR_NAMES
    yield taken, "pe.name", "is taken; with pe.code give a name of its own"

    for key in ("pe.layers", "pe.layers_vo", "model.window_layers"):
        pattern = attrgetter(key)(config) or EVERY
        allowed = "reaches none of the {0.model.num_hidden_layers} layers"
        yield 1 not in pattern[: model.num_hidden_layers], key, allowed

    # NoPE must satisfy this, too: all variants must be comparable at a size.
    rotary_dim = config.attn.rotary_dim(model)
    key = "model.num_attention_heads" if model.head_dim is None else "model.head_dim"
    allowed = f"leaves heads of {rotary_dim} features; rotation pairs them: it must be even"
    yield rotary_dim % 2, key, allowed
    for pair, key in (("qk", "pe.fraction"), ("vo", "pe.fraction_vo")):
        allowed = f"leaves no pair to rotate in heads of {rotary_dim} features"
        yield pe.num_features(rotary_dim, pair) < 2, key, allowed

    allowed = "has no rows for positions between whole ones, as those of data={0.data.kind} are"
    yield pe.input == "learned" and not config.predicts_tokens, "pe.input", allowed
    allowed = "must be even for pe.input=sinusoidal"
    yield pe.is_sinusoidal and model.hidden_size % 2, "model.hidden_size", allowed
    key = "data.random_start" if config.data.random_start > pe.start else "pe.start"
    allowed = f"positions past {MAX_POSITION:,} are not exact in float32"
    yield config.num_positions > MAX_POSITION, key, allowed
