"""The sentences around the table: caption, summary, notes and assumptions.

Nothing here says more than the runs do: without tests of significance the order of the means is
called just that.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import Any

from rope_exp.config.run import RunConfig
from rope_exp.config.sections import INIT_STD
from rope_exp.evidence import published
from rope_exp.evidence.contrasts import Contrast, kendall_tau
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report

# Facts of env.json of which a table should have one.
_SAME = ("device", "torch", "world_size", "num_threads", "git")

# What is said of a config, by its keys and the words of `_words`.
_BUDGET = (
    "{train.num_tokens:,} tokens a run ({train.num_steps} steps × {train.global_batch_size} "
    "sequences × {train.seq_len} tokens)"
)
_CHOICES = (
    "Corpus: {corpus}.",
    "Tokenizer: {tokenizer.name} ({vocabulary}).",
    "Model: {model.num_hidden_layers} layers, width {model.hidden_size}, "
    "SwiGLU {model.intermediate_size}, {model.num_attention_heads} heads of {model.head_dim} "
    "({model.num_key_value_heads} of keys and values), {head} head, scale 1/√{model.head_dim} in "
    "every variant.",
    "Learning rate: {optim.lr:g} at its peak{same}; AdamW with betas {optim.betas[0]:g} and "
    "{optim.betas[1]:g}, weight decay {optim.weight_decay:g} of matrices, clipping at "
    "{optim.grad_clip:g}.",
    "Schedule: {schedule.name}, {schedule.warmup_fraction:.0%} of the steps warming up, down to "
    "{schedule.final_fraction:.0%} of the peak{over}.",
    "Length: {train.seq_len} tokens.",
    "Batch: {train.global_batch_size} sequences, {train.tokens_per_step:,} tokens a step, "
    "{train.num_steps} steps.",
    "Pairing: half-split, feature f with f + K/2, as LLaMA in transformers.",
    "Frequencies: base {pe.base:g}, {pe.fraction:.0%} of a head's features, first position "
    "{pe.start}, {learned}.",
    "Initialisation: normal, deviation {deviation:g}, projections onto the residual stream times "
    "1/√(2 × layers); the same initial weights for every variant of a seed.",
    "Precision: {train.precision}{autocast}.",
    "Documents: packed one after another, an end-of-text token between them, without attention "
    "masks.",
    "Evaluation: mean nats per token on {train.eval_sequences} fixed held-out windows of "
    "{train.seq_len} tokens (all there are, if the held-out set is smaller).",
)


def caption(report: Report) -> str:
    """Say what was run: groups, seeds, parameters, corpus, budget."""
    rows = _count(len(report.rows), "variant")
    if not report.of_variants:
        rows = f"{_count(len(report.rows), 'row')} by {', '.join(report.keys)}"

    params = _span([run.result["params"] for run in report.runs if run.result], ",", " to ")
    epochs = _span([run.epochs for run in report.runs if run.epochs], ".3g", " to ")
    passes = f", {epochs} epochs" if epochs else ""
    corpora = dict.fromkeys(str(run.config.data.name) for run in report.runs)
    budgets = dict.fromkeys(_BUDGET.format(train=run.config.train) for run in report.runs)
    return (
        f"Group {report.groups}: {rows}, {_seeds(run.config.seed for run in report.runs)}; "
        f"{params or 'unknown'} parameters; corpus {' or '.join(corpora)}; "
        f"{' or '.join(budgets)}{passes}. "
        "Losses are validation losses in nats per token; "
        f"Δ is the mean difference to {report.reference.name} within a seed."
    )


def summary(report: Report) -> str:
    """Say in one sentence what the losses show, and claim no more than they carry."""
    ranked = _ranked(report)
    if not ranked:
        if any(ours.num_seeds for ours in report.contrasts.values()):
            return (
                "No seed has finished in every variant that has a loss: there is no order to read."
            )
        return "No run has finished: there is nothing to compare."

    names = [report.rows[label].name for label in ranked]
    means = [f"{ours.loss_mean:.4f}" for ours in ranked.values()]
    if len(ranked) == 1:
        return f"Only {names[0]} has finished ({means[0]}): there is nothing to compare."
    ends = f"best {names[0]} ({means[0]}), worst {names[-1]} ({means[-1]})"
    if report.of_variants:
        ends += f"; {tau_clause(report)}"

    counts = [ours.num_seeds for ours in ranked.values()]
    if max(counts) == 1:
        return f"One seed: no difference here can be called real; {ends}."

    deviations = [ours.loss_sd for ours in ranked.values() if ours.loss_sd is not None]
    return (
        f"{_span(counts, 'd', '–')} seeds, significance not yet tested, so no difference here is "
        f"called real; mean order {', '.join(names)}; sd over seeds "
        f"{_span(deviations, '.4f', '–')} nats; {ends}."
    )


def orders(report: Report) -> list[str]:
    """Say our order, and the published one where rows are variants."""
    names = ", ".join(report.rows[label].name for label in _ranked(report))
    how = ", by mean loss over the seeds that all share, untested"
    said = [f"Our order{how}: {names}." if names else "Our order: none yet."]
    if report.of_variants:
        said += [
            f'Published order: {published.ORDER} (">" is better).',
            f"{tau_clause(report)}, over the variants that both have.",
        ]
    return said


def tau_clause(report: Report) -> str:
    """Say how our order agrees with the published one."""
    ranks = {label: ours.rank for label, ours in report.contrasts.items() if ours.rank}
    tau, count = kendall_tau(ranks, published.LOSSES)
    value = "undefined" if tau is None else f"{tau:.3f}"
    return f"Kendall's tau-b against the published order is {value} (n = {count})"


def notes(report: Report) -> list[str]:
    """Say what the numbers do not show: runs without one, unequal seeds, interrupted runs."""
    said = []
    if report.of_variants:
        said.append(
            "Ranks: ours among the variants here that have a loss, the published among its nine; "
            f"published losses: {published.SOURCE}."
        )
    if not report.reference.losses:
        said.append(f"{report.reference.name} has no finished run here, so there is no Δ.")

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
            listed = [f"{value} ({_count(counts[value], 'run')})" for value in sorted(counts)]
            said.append(f"Runs differ in {key}: {', '.join(listed)}.")
    for folder in report.left_out:
        said.append(f"{folder} holds no run <pe>/seed<k> and was left out.")
    return said


def assumptions(report: Report) -> list[str]:
    """Say each choice that the source leaves open, with every value that it had here."""
    configs = [run.config for run in report.runs]
    configs.sort(key=attrgetter("pe.base", "pe.fraction", "pe.start", "pe.trainable"))
    rates = {config.optim.lr for config in configs}
    same = ", the same for every variant" if len(rates) == 1 else ""

    said: dict[str, None] = {}
    for choice in _CHOICES:
        said |= dict.fromkeys(choice.format(same=same, **_words(config)) for config in configs)
    return list(said)


# -- of one run ------------------------------------------------------------------------------------


def _run_notes(run: Run) -> list[str]:
    name = f"{run.variant_name}, seed {run.config.seed}"
    said = [f"{name}: {mark} ({run.where})." for mark in run.env.get("marks", [])]
    if run.status != "finished":
        verb = "diverged" if run.result else "is unfinished:"
        last = [{"step": 0}, *run.metrics][-1]
        step = run.result.get("diverged_step", last["step"])
        said.append(f"{name}, {verb} at step {step} of {run.config.train.num_steps} ({run.where}).")
    return said


def _words(config: RunConfig) -> dict[str, Any]:
    """Return what `_CHOICES` say of a config: its sections, and words for some of its keys."""
    data = config.data
    limit = f"the first {data.max_tokens:,} tokens" if data.max_tokens else None
    corpus = filter(None, (data.name, data.path, data.subset, data.revision, limit))

    tokens = config.tokenizer
    size = f"vocabulary {tokens.vocab_size}" if tokens.vocab_size else None
    vocabulary = filter(None, (tokens.kind, size or tokens.path))

    descent = getattr(config.schedule, "decay_fraction", None)
    return {
        **vars(config),
        "corpus": ", ".join(corpus),
        "vocabulary": ", ".join(vocabulary),
        "head": "tied" if config.model.tie_word_embeddings else "untied",
        "over": "" if descent is None else f" over the last {descent:.0%}",
        "learned": "learned" if config.pe.trainable else "fixed",
        "deviation": INIT_STD,
        "autocast": " autocast over float32 weights" if config.train.precision == "bf16" else "",
    }


# -- words -----------------------------------------------------------------------------------------


def _ranked(report: Report) -> dict[str, Contrast]:
    """Return the rows that stand in an order: those with a loss, where they share a seed."""
    return {label: ours for label, ours in report.contrasts.items() if ours.rank}


def _seed_notes(report: Report) -> list[str]:
    """Means over different seeds are not means of the same thing; Δ is, over seeds it names."""
    everywhere = {run.config.seed for run in report.runs if run.status == "finished"}
    said = []
    for row in report.best_first:
        mine = row.losses.keys()
        shared = mine & report.reference.losses.keys()
        if mine and not mine == everywhere == shared:
            same = "the same" if mine == shared else _seeds(shared)
            said.append(f"{row.name}: mean over {_seeds(mine)}, Δ over {same}.")
    return said


def _seeds(seeds: Iterable[int]) -> str:
    listed = ", ".join(map(str, sorted(set(seeds))))
    if not listed:
        return "no seed"
    return f"seed{'s' if ',' in listed else ''} {listed}"


def _span(values: Collection[float], form: str, between: str) -> str:
    """Return the least and the greatest of some values, or the one that there is, or nothing."""
    ends = sorted({min(values), max(values)}) if values else []
    return between.join(format(value, form) for value in ends)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _spelled(value: object) -> str:
    """Return a value of env.json: a commit by its first digits, + where the tree was changed."""
    if not isinstance(value, dict):
        return str(value)
    return f"{value.get('commit')!s:.10}{'+' if value.get('dirty') else ''}"
