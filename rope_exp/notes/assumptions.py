"""Assumptions of a table; those that no key changes are in docs/comparing.md."""

from rope_exp.config import RunConfig
from rope_exp.errors import show
from rope_exp.identity import affecting_values, metadata_of
from rope_exp.report import Part, Report
from rope_exp.sections import SoftmaxConfig

# The sections of a config that are listed, and their titles.
_SECTIONS = {
    "data": "Corpus",
    "tokenizer": "Tokenizer",
    "model": "Model",
    "pe": "Position",
    "optim": "Optimiser",
    "schedule": "Schedule",
    "train": "Training",
}
_EVALUATION = (
    "Evaluation: mean nats per token on fixed held-out windows of seq_len tokens: eval_sequences "
    "windows, or all if there are fewer."
)
_OF_TASKS = (
    "Data: generated row by row from the data seed; no training row is repeated.",
    "Evaluation: {unit} on eval_sequences rows of a separate stream, the same for every run.",
)
_MASKED = (
    "Objective mlm: attention is bidirectional. In each sequence, 15 % of the tokens are "
    "predicted: 80 % of these are replaced by a mask, 10 % by a random token, and 10 % are "
    "unchanged. Losses are means over the predicted tokens only. Every run predicts the same "
    "held-out tokens."
)


def assumptions(report: Report) -> list[str]:
    """List each choice that the source leaves open, with every value that it had here."""
    configs = [run.config for run in report.runs]
    sentences = [_choices(config, section) for section in _SECTIONS for config in configs]
    sentences += map(_kind, configs)
    sentences += [
        f"Initial weights: {config.init_weights:.12} from a finished run; parameters that it lacks "
        "are initialized as in other runs."
        for config in configs
        if config.init_weights is not None
    ]

    of_text = [config for config in configs if config.task is None]
    sentences += map(_documents, of_text)
    if of_text:
        sentences.append(_EVALUATION)
    if any(config.train.objective == "mlm" for config in of_text):
        sentences.append(_MASKED)
    if len(of_text) < len(configs):
        sentences += [sentence.format(unit=report.unit) for sentence in _OF_TASKS]
    return list(dict.fromkeys(sentences))


def _kind(config: RunConfig) -> str:
    """Describe the kind of attention."""
    if isinstance(config.attn, SoftmaxConfig):
        return "Attention: softmax with scale 1/√K, where K is the size of a head."
    values = {key: value for key, value in affecting_values(config.attn).items() if key != "kind"}
    listed = [f"{key} {show(value)}" for key, value in values.items() if value is not None]
    return f"Attention: {', '.join([config.attn.kind, *listed])}."


def _documents(config: RunConfig) -> str:
    """Describe how documents fill a row, and where positions start."""
    data = config.data
    parts = ["Documents: packed, with an end-of-text token between them"]
    parts.append("attention within documents" if data.document_mask else "without attention masks")
    if data.reset_positions:
        parts.append("positions restart at 0 in each document")
    if data.random_start:
        parts.append(f"training rows start at a random position up to {data.random_start}")
    return f"{', '.join(parts)}."


def _choices(config: RunConfig, section: str) -> str:
    """Return a sentence that lists every value of a section that can change a number.

    Optional additions to a variant are listed only for runs that use them.
    """
    settings = getattr(config, section)
    values = {"name": settings.name, **affecting_values(settings)}
    departing = affecting_values(settings, departing=True)
    if section == "data" and config.task:
        # The other keys only concern text.
        of_task = {"name", "kind", "seed", config.task.key}
        values = {key: value for key, value in values.items() if key in of_task}

    places = metadata_of(settings, "assumption")
    listed = []
    for key, value in values.items():
        is_hidden = key in places and (places[key] == "elsewhere" or key not in departing)
        if value is not None and not is_hidden:
            listed.append(f"{key} {show(value)}")
    return f"{_SECTIONS[section]}: {', '.join(listed)}."


REPORT = Part(assumptions=assumptions)
