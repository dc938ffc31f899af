"""What a run's config may not combine: rules between keys, of one section or of several."""

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rope_exp.config.learning import WsdConfig
from rope_exp.config.schema import facts, idle, numeric_values
from rope_exp.config.sections import DataConfig
from rope_exp.config.tasks import TASK_PROBES
from rope_exp.config.variants import OUR_NAMES, PAIRS, source_sha256

if TYPE_CHECKING:
    from rope_exp.config.run import RunConfig

MAX_POSITION = 2**24  # float32 represents all integers up to this one

# Whether a rule is broken, the key at fault, and what is allowed there.
Rules = Iterator[tuple[Any, str, str]]


def rules(config: "RunConfig") -> Rules:
    """Yield every rule of a config. A rule may rely on those before it."""
    for section in ("pe", "model", "tokenizer"):
        for key, needs in idle(getattr(config, section)):
            yield True, f"{section}.{key}", needs

    yield from _of_code(config)
    yield from _of_data(config)
    yield from _of_budget(config)
    yield from _of_attention(config)
    yield from _of_objective(config)
    yield from _of_probes(config)
    yield from _of_layers_and_positions(config)


def _of_code(config: "RunConfig") -> Rules:
    pe = config.pe
    changed = pe.source is not None and pe.code_sha256 != source_sha256(pe.source)
    yield changed, "pe.source", "was changed: pe.code_sha256 is of another text"
    taken = pe.code is not None and pe.name in OUR_NAMES
    yield taken, "pe.name", "is taken; with pe.code give a name of its own"


def _of_data(config: "RunConfig") -> Rules:
    data = config.data
    has_path = data.kind in ("files", "hub")
    allowed = "must name the corpus of data=files and data=hub; no other has a path"
    yield has_path != (data.path is not None), "data.path", allowed
    allowed = "must name the column that holds the text"
    yield has_path and not data.text_column, "data.text_column", allowed
    kinds = facts(DataConfig, "kinds")
    for key in numeric_values(data, departing=True):
        of = kinds.get(key, (data.kind,))
        yield data.kind not in of, f"data.{key}", f"is for data={' or '.join(of)} alone"

    tokenizer = config.tokenizer
    kind = tokenizer.kind
    for key in ("vocab_size", "train_bytes"):
        is_open = kind == "bpe" and getattr(tokenizer, key) is None
        allowed = "must be set for a tokenizer that is trained on the corpus"
        yield is_open, f"tokenizer.{key}", allowed
    is_given = kind != "bpe" and tokenizer.vocab_size is not None
    allowed = f"is given by tokenizer={tokenizer.name}; leave null"
    yield is_given, "tokenizer.vocab_size", allowed
    is_odd = (kind == "pretrained") != (tokenizer.path is not None)
    yield is_odd, "tokenizer.path", "must be set for tokenizer=pretrained, and only there"
    allowed = "is of generated data, such as data=addition, which choose it themselves"
    yield kind == "task" and not data.task, "tokenizer.kind", allowed
    allowed = f"data={data.kind} has tokens of its own: leave out tokenizer=..."
    yield kind != "task" and data.task, "tokenizer.kind", allowed


def _of_budget(config: "RunConfig") -> Rules:
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

    name = f"data={config.data.kind}"
    if task := config.data.task:
        allowed = f"must be {task.objective} for {name}"
        yield train.objective != task.objective, "train.objective", allowed
        allowed = f"{name} has rows of one length; leave null"
        yield train.stages is not None, "train.stages", allowed
        allowed = f"must be at least {task.least_seq_len} for {name}"
        yield train.seq_len < task.least_seq_len, "train.seq_len", allowed


def _of_attention(config: "RunConfig") -> Rules:
    model = config.model
    pe = config.pe
    attn = config.attn
    name = f"attn.kind={attn.kind}"
    heads = model.num_attention_heads
    allowed = f"must divide model.num_attention_heads={heads}"
    yield heads % model.num_key_value_heads, "model.num_key_value_heads", allowed

    refused = [site for site in pe.rotate if site not in attn.sites()]
    why_not = attn.why_not or f"{name} can rotate {' and '.join(attn.sites()) or 'nothing'}"
    yield refused, "pe.rotate", f"{why_not}; {' and '.join(refused)} must not stand there"
    if not attn.keeps_keys:
        allowed = f"{name} keeps a state, which cannot forget"
        yield model.window is not None, "model.window", allowed
        yield pe.bias != "none", "pe.bias", f"{name} has no scores of pairs to add it to"
        allowed = f"{name} keeps a state, which goes on from one document into the next"
        yield config.data.document_mask, "data.document_mask", f"{allowed}; leave false"
    for key in ("pe.code", "model.qk_norm", "model.token_shift"):
        is_refused = attrgetter(key)(config) and not attn.takes_additions
        yield is_refused, key, f"{name} has none; attn=softmax has"

    if attn.takes_heads:
        allowed = f"must divide model.hidden_size={model.hidden_size}, or model.head_dim be set"
        is_odd = model.head_dim is None and model.hidden_size % heads
        yield is_odd, "model.num_attention_heads", allowed
    else:
        allowed = f"{name} has its own sizes; leave null"
        yield model.head_dim is not None, "model.head_dim", allowed
        allowed = f"{name} has no such heads; leave it equal to model.num_attention_heads"
        yield model.num_key_value_heads != heads, "model.num_key_value_heads", allowed
        for key in ("pe.fraction", "pe.fraction_vo"):
            allowed = f"{name} rotates attn.rope_dim features; leave it as it is"
            yield attrgetter(key)(config) not in (1, None), key, allowed
    yield from attn.rules(model)


def _of_objective(config: "RunConfig") -> Rules:
    model = config.model
    objective = config.train.objective
    name = f"data={config.data.kind}"
    if objective == "regression":
        yield config.data.task is None, "train.objective", "is for data=spikes alone"
        allowed = f"{name} predicts no tokens, whose embeddings could be shared; leave false"
        yield model.tie_word_embeddings, "model.tie_word_embeddings", allowed
        allowed = f"goes by places in the row, and positions of {name} are times; leave none"
        yield config.pe.bias != "none", "pe.bias", allowed
        allowed = f"has no rows for positions between whole ones, as those of {name} are"
        yield config.pe.input == "learned", "pe.input", allowed

    if objective != "causal":
        allowed = (
            f"mixes in the token before, and train.objective={objective} looks both ways; "
            "train.objective=causal does not, and here leave false"
        )
        yield model.token_shift, "model.token_shift", allowed
        kind = config.attn.kind
        allowed = f"looks both ways, and the state that attn.kind={kind} keeps goes one way alone"
        yield not config.attn.keeps_keys, "train.objective", allowed
        allowed = f"is of the keys before a query, and train.objective={objective} looks both ways"
        yield model.window is not None, "model.window", allowed


def _of_probes(config: "RunConfig") -> Rules:
    """Yield what a finished model cannot be asked for."""
    data = config.data
    model = config.model
    train = config.train
    pe = config.pe
    kind = f"attn.kind={config.attn.kind} cannot be asked for"
    rotary_dim = config.attn.rotary_dim(model)
    rotating = [pair for pair in PAIRS if {*pair} & {*pe.rotate}]
    num_features = [pe.num_features(rotary_dim, pair) for pair in rotating]

    lacks: dict[str, list[tuple[Any, str]]] = {
        "floors": [(not config.attn.has_floors, f"{kind} floors")],
        "distance": [
            (not config.attn.keeps_keys, f"{kind} distance"),
            (train.seq_len < 2, "distance needs train.seq_len of at least 2"),
            (model.window_layers, "distance has one uniform baseline: no model.window_layers"),
            (data.document_mask, "distance would read across documents; no data.document_mask"),
        ],
        "repeat": [
            (
                not config.causal or train.seq_len < 4,
                "repeat needs train.objective=causal and train.seq_len of at least 4",
            ),
            (data.document_mask, "repeat would read across documents; no data.document_mask"),
        ],
        "drift": [(not pe.trainable, "drift needs frequencies that are learned: pe.trainable")],
        "token_shift": [
            (not model.token_shift, "token_shift needs mu, which is learned: model.token_shift")
        ],
        "extension": [
            (not pe.rotate, "extension needs at least one site in pe.rotate"),
            (
                pe.input == "learned",
                "extension needs positions past the trained length, which pe.input=learned has not",
            ),
            (
                min(num_features, default=0) < 4,
                "extension needs two pairs of features that rotate, a first and a last",
            ),
            (
                train.seq_len <= math.tau,
                "extension needs train.seq_len of at least 7, in which a pair can turn once",
            ),
        ],
    }
    for probe in train.probes:
        if data.task:
            allowed = f"data={data.kind} can be asked for {data.task.probe} alone"
            yield probe != data.task.probe, "train.probes", allowed
        else:
            allowed = f"{' and '.join(TASK_PROBES)} are asked of generated data, such as "
            yield probe in TASK_PROBES, "train.probes", f"{allowed}data=addition"
        for is_lacking, allowed in lacks.get(probe, ()):
            yield is_lacking, "train.probes", allowed


def _of_layers_and_positions(config: "RunConfig") -> Rules:
    model = config.model
    pe = config.pe
    num_layers = model.num_hidden_layers
    for key, does in (
        ("pe.layers", "rotates"),
        ("pe.layers_vo", "rotates"),
        ("model.window_layers", "has"),
    ):
        pattern = attrgetter(key)(config)
        is_empty = pattern and 1 not in pattern[:num_layers]
        yield is_empty, key, f"{does} none of the {num_layers} layers"

    # NoPE must satisfy this, too: all variants must be comparable at a size.
    rotary_dim = config.attn.rotary_dim(model)
    key = "model.num_attention_heads" if model.head_dim is None else "model.head_dim"
    allowed = f"leaves heads of {rotary_dim} features; rotation pairs them: it must be even"
    yield rotary_dim % 2, key, allowed
    for pair, key in (("qk", "pe.fraction"), ("vo", "pe.fraction_vo")):
        allowed = f"leaves no pair to rotate in heads of {rotary_dim} features"
        yield pe.num_features(rotary_dim, pair) < 2, key, allowed

    is_odd = pe.is_sinusoidal and model.hidden_size % 2
    yield is_odd, "model.hidden_size", "must be even for pe.input=sinusoidal"
    key = "data.random_start" if config.data.random_start > pe.start else "pe.start"
    allowed = f"positions past {MAX_POSITION:,} are not exact in float32"
    yield config.num_positions > MAX_POSITION, key, allowed
