"""The sentences around the table: caption, summary, notes and assumptions.

Nothing here says more than the runs do: without tests of significance the order of the means is
called just that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from rope_exp.config.run import RunConfig
from rope_exp.config.sections import INIT_STD
from rope_exp.evidence import published
from rope_exp.evidence.comparable import Row
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report

# Facts of env.json of which a table should have one.
_SAME = ("device", "torch", "world_size", "num_threads", "git")


def caption(report: Report) -> str:
    """Say what was run: groups, seeds, parameters, corpus, budget."""
    params = [run.result["params"] for run in report.runs if run.result is not None]
    size = _span(params, ",", " to ") if params else "unknown"
    epochs = [run.epochs for run in report.runs if run.epochs is not None]
    passes = f", {_span(epochs, '.3g', ' to ')} epochs" if epochs else ""
    seeds = _seeds(run.config.seed for run in report.runs)

    return (
        f"Group {report.groups}: {_num_rows(report)}, {seeds}; {size} parameters; "
        f"corpus {_each(report, lambda run: str(run.config.data.name))}; "
        f"{_each(report, _budget)}{passes}. "
        "Losses are validation losses in nats per token; "
        f"Δ is the mean difference to {report.reference_name} within a seed."
    )


def summary(report: Report) -> str:
    """Say in one sentence what the losses show, and claim no more than they carry."""
    ranked = _ranked(report)
    if not ranked:
        if any(row.losses for row in report.rows):
            return (
                "No seed has finished in every variant that has a loss: there is no order to read."
            )
        return "No run has finished: there is nothing to compare."

    first = ranked[0]
    last = ranked[-1]
    best = _loss(report, first)
    if len(ranked) == 1:
        return f"Only {first.name} has finished ({best}): there is nothing to compare."
    ends = f"best {first.name} ({best}), worst {last.name} ({_loss(report, last)})"
    if report.published:
        ends += f"; {tau_clause(report)}"

    counts = [len(row.losses) for row in ranked]
    if max(counts) == 1:
        return f"One seed: no difference here can be called real; {ends}."

    deviations = [report.contrasts[row.label].loss_sd for row in ranked]
    spread = _span([sd for sd in deviations if sd is not None], ".4f", "–")
    return (
        f"{_span(counts, 'd', '–')} seeds, significance not yet tested, so no difference here is "
        f"called real; mean order {_names(ranked)}; sd over seeds {spread} nats; {ends}."
    )


def orders(report: Report) -> list[str]:
    """Say our order, and the published one where rows are variants."""
    ranked = _ranked(report)
    said = ["Our order: none yet."]
    if ranked:
        said = [
            f"Our order, by mean loss over the seeds that all share, untested: {_names(ranked)}."
        ]
    if report.published:
        said += [
            f'Published order: {published.ORDER} (">" is better).',
            f"{tau_clause(report)}, over the variants that both have.",
        ]
    return said


def tau_clause(report: Report) -> str:
    """Say how our order agrees with the published one."""
    tau, count = report.tau
    value = "undefined" if tau is None else f"{tau:.3f}"
    return f"Kendall's tau-b against the published order is {value} (n = {count})"


def notes(report: Report) -> list[str]:
    """Say what the numbers do not show: runs without one, unequal seeds, interrupted runs."""
    said = []
    if report.published:
        said.append(
            "Ranks: ours among the variants here that have a loss, the published among its nine; "
            f"published losses: {published.SOURCE}."
        )
    if report.reference_row is None or not report.reference_row.losses:
        said.append(f"{report.reference_name} has no finished run here, so there is no Δ.")

    for run in report.runs:
        said += _run_notes(run)
    said += _seed_notes(report)

    learned = {run.variant_name for run in report.runs if run.config.pe.trainable}
    for name in sorted(learned):
        said.append(
            f"{name} learns its frequencies: its initial weights hold them, and no hash shows the "
            "rest to be the others'."
        )
    for key in _SAME:
        counts = Counter(_spelled(run.env[key]) for run in report.runs if key in run.env)
        if len(counts) > 1:
            listed = ", ".join(
                f"{value} ({_count(counts[value], 'run')})" for value in sorted(counts)
            )
            said.append(f"Runs differ in {key}: {listed}.")
    for folder in report.left_out:
        said.append(f"{folder} holds no run <pe>/seed<k> and was left out.")
    return said


def assumptions(report: Report) -> list[str]:
    """Say each choice that the source leaves open, with every value that it had here."""
    configs = sorted((run.config for run in report.runs), key=_turning)
    rates = {config.optim.lr for config in configs}
    same = ", the same for every variant" if len(rates) == 1 else ""
    choices = zip(*(_choices(config, same) for config in configs), strict=True)
    return list(dict.fromkeys(chain.from_iterable(choices)))


# -- of one run ------------------------------------------------------------------------------------


def _run_notes(run: Run) -> list[str]:
    name = f"{run.variant_name}, seed {run.config.seed}"
    steps = run.config.train.num_steps
    said = [f"{name}: {mark} ({run.where})." for mark in run.env.get("marks", [])]

    if run.result is None:
        step = run.metrics[-1]["step"] if run.metrics else 0
        said.append(f"{name}, is unfinished: at step {step} of {steps} ({run.where}).")
    elif run.status == "diverged":
        step = run.result["diverged_step"]
        said.append(f"{name}, diverged at step {step} of {steps} ({run.where}).")
    return said


def _budget(run: Run) -> str:
    train = run.config.train
    return (
        f"{run.tokens:,} tokens a run ({train.num_steps} steps × {train.global_batch_size} "
        f"sequences × {train.seq_len} tokens)"
    )


def _turning(config: RunConfig) -> tuple[float, float, int, bool]:
    pe = config.pe
    return pe.base, pe.fraction, pe.start, pe.trainable


def _choices(config: RunConfig, same: str) -> list[str]:
    """Return what the source leaves open, as one run has it; `same` is said of the rate."""
    data = config.data
    limit = f"the first {data.max_tokens:,} tokens" if data.max_tokens else None
    corpus = filter(None, (data.name, data.path, data.subset, data.revision, limit))

    tokens = config.tokenizer
    size = f"vocabulary {tokens.vocab_size}" if tokens.vocab_size else None
    vocabulary = ", ".join(filter(None, (tokens.kind, size or tokens.path)))

    model = config.model
    head = "tied" if model.tie_word_embeddings else "untied"
    optim = config.optim
    schedule = config.schedule
    descent = getattr(schedule, "decay_fraction", None)
    over = "" if descent is None else f" over the last {descent:.0%}"

    train = config.train
    autocast = " autocast over float32 weights" if train.precision == "bf16" else ""
    base, fraction, start, trainable = _turning(config)
    return [
        f"Corpus: {', '.join(corpus)}.",
        f"Tokenizer: {tokens.name} ({vocabulary}).",
        f"Model: {model.num_hidden_layers} layers, width {model.hidden_size}, "
        f"SwiGLU {model.intermediate_size}, {model.num_attention_heads} heads of {model.head_dim} "
        f"({model.num_key_value_heads} of keys and values), {head} head, "
        f"scale 1/√{model.head_dim} in every variant.",
        f"Learning rate: {optim.lr:g} at its peak{same}; AdamW with betas {optim.betas[0]:g} and "
        f"{optim.betas[1]:g}, weight decay {optim.weight_decay:g} of matrices, clipping at "
        f"{optim.grad_clip:g}.",
        f"Schedule: {schedule.name}, {schedule.warmup_fraction:.0%} of the steps warming up, "
        f"down to {schedule.final_fraction:.0%} of the peak{over}.",
        f"Length: {train.seq_len} tokens.",
        f"Batch: {train.global_batch_size} sequences, "
        f"{train.global_batch_size * train.seq_len:,} tokens a step, {train.num_steps} steps.",
        "Pairing: half-split, feature f with f + K/2, as LLaMA in transformers.",
        f"Frequencies: base {base:g}, {fraction:.0%} of a head's features, first position {start}, "
        f"{'learned' if trainable else 'fixed'}.",
        f"Initialisation: normal, deviation {INIT_STD:g}, projections onto the residual stream "
        "times 1/√(2 × layers); the same initial weights for every variant of a seed.",
        f"Precision: {train.precision}{autocast}.",
        "Documents: packed one after another, an end-of-text token between them, without attention "
        "masks.",
        f"Evaluation: mean nats per token on {train.eval_sequences} fixed held-out windows of "
        f"{train.seq_len} tokens (all there are, if the held-out set is smaller).",
    ]


# -- words -----------------------------------------------------------------------------------------


def _ranked(report: Report) -> list[Row]:
    """Return the rows that stand in an order: those with a loss, where they share a seed."""
    return [row for row in report.rows if report.contrasts[row.label].rank is not None]


def _loss(report: Report, row: Row) -> str:
    return f"{report.contrasts[row.label].loss_mean:.4f}"


def _names(rows: Iterable[Row]) -> str:
    return ", ".join(row.name for row in rows)


def _num_rows(report: Report) -> str:
    """Return how many rows there are, and by what they differ where they are not variants."""
    count = len(report.rows)
    if report.published:
        return _count(count, "variant")
    return f"{_count(count, 'row')} by {', '.join(report.comparison.keys)}"


def _seed_notes(report: Report) -> list[str]:
    """Means over different seeds are not means of the same thing; Δ is, over seeds it names."""
    everywhere = set().union(*(row.losses for row in report.rows))
    base = set(report.reference_row.losses) if report.reference_row else set()
    said = []
    for row in report.rows:
        mine = set(row.losses)
        shared = mine & base
        if mine and (mine != everywhere or mine != shared):
            same = "the same" if mine == shared else _seeds(shared)
            said.append(f"{row.name}: mean over {_seeds(mine)}, Δ over {same}.")
    return said


def _seeds(seeds: Iterable[int]) -> str:
    listed = sorted(set(seeds))
    if not listed:
        return "no seed"
    return f"seed{'' if len(listed) == 1 else 's'} {', '.join(map(str, listed))}"


def _each(report: Report, phrase: Callable[[Run], str]) -> str:
    """Return what is said of each run, once."""
    return " or ".join(dict.fromkeys(map(phrase, report.runs)))


def _span(values: Sequence[float], form: str, between: str) -> str:
    """Return the least and the greatest of some values, or the one that there is."""
    ends = dict.fromkeys((min(values), max(values)))
    return between.join(format(value, form) for value in ends)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _spelled(value: object) -> str:
    """Return a value of env.json: a commit by its first digits, + where the tree was changed."""
    if not isinstance(value, dict):
        return str(value)
    return f"{value.get('commit')!s:.10}{'+' if value.get('dirty') else ''}"
