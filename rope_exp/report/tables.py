"""The table in its four spellings (Markdown, CSV, LaTeX, plain text) and the sentences around it.

Nothing here says more than the runs do: without tests of significance the order of the means is called just that, and
an unfinished or diverged run is a word, never a number.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable

from rope_exp.config.run import RunConfig
from rope_exp.config.sections import CosineConfig
from rope_exp.evidence import published
from rope_exp.evidence.contrasts import Row, ranks
from rope_exp.evidence.runs import Report, Run

CSV_COLUMNS = (
    *("group", "pe", "rotate", "num_seeds", "loss_mean", "loss_sd"),
    *(
        "delta",
        "delta_ci_low",
        "delta_ci_high",
        "p_holm",
        "verdict",
        "published_loss",
        "published_delta",
    ),
)
DASH = "—"
_TEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
    **{"Δ": r"$\Delta$", DASH: "---"},
}


def csv_table(report: Report) -> str:
    """table.csv: six decimals, nats; a cell without a number is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, CSV_COLUMNS, restval="", lineterminator="\n"
    )  # columns that no row fills stay empty
    writer.writeheader()
    for row in report.rows:
        numbers = {
            "loss_mean": _fixed(row.loss_mean, 6),
            "loss_sd": _fixed(row.loss_sd, 6),
            "delta": _signed(row.delta, 6),
            "published_loss": _fixed(row.published_loss, 6),
            "published_delta": _signed(row.published_delta, 6),
        }
        words = {
            "group": report.group.name,
            "pe": row.label,
            "rotate": "".join(row.rotate),
            "verdict": row.verdict,
        }
        writer.writerow(
            {**words, "num_seeds": row.num_seeds}
            | {k: "" if v == DASH else v for k, v in numbers.items()}
        )
    return text.getvalue()


def plain_table(report: Report) -> str:
    """For a terminal: aligned columns."""
    lines = [_headers(report), *(_cells(row) for row in report.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    form = "  ".join(
        f"{{:{'<' if number < 2 else '>'}{width}}}" for number, width in enumerate(widths)
    )
    return "".join(form.format(*line) + "\n" for line in lines)


def tex_table(report: Report) -> str:
    """table.tex: a tabular for booktabs."""
    header, *lines = [
        " & ".join(map(_tex, cells)) + r" \\"
        for cells in (_headers(report), *(_cells(row) for row in report.rows))
    ]
    return "\n".join(
        [
            f"% {_one_line(caption(report))} Needs \\usepackage{{booktabs}}.",
            r"\begin{tabular}{llrrrrrrrr}",
            *(r"\toprule", header, r"\midrule", *lines, r"\bottomrule"),
            r"\end{tabular}",
            "",
        ]
    )


def markdown(report: Report) -> str:
    """table.md: the table, the two orders, the summary, what to know of single runs, and every assumption."""
    lines = [_headers(report), ["---", "---", *["---:"] * 8], *(_cells(row) for row in report.rows)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    ours = (
        f"Our order, by mean loss over the seeds that all share, untested: {_order(report)}."
        if _ranked(report)
        else "Our order: none yet."
    )
    theirs = f'Published order: {published.ORDER} (">" is better).'
    parts = [
        f"**{caption(report)}**",
        table,
        f"{ours}\\\n{theirs}\\\n{_tau_clause(report)}, over the variants that both have.",
        summary(report),
        "![Loss curves](figures/loss_curves.png)\n![Against the published losses](figures/against_published.png)",
        "Notes:\n\n" + _bullets(notes(report)),
        "Assumptions, which the source leaves open:\n\n" + _bullets(assumptions(report)),
    ]
    return "\n\n".join(parts) + "\n"


# -- sentences ---------------------------------------------------------------------------------------------------------


def caption(report: Report) -> str:
    """What was run: group, seeds, tokens, parameters, corpus, budget."""
    config, train = _config(report), _config(report).train
    seeds = sorted({run.config.seed for run in report.group.runs})
    tokens = train.num_steps * train.global_batch_size * train.seq_len
    params = sorted({run.result["params"] for run in report.group.runs if run.result is not None})
    size = (
        " to ".join(f"{count:,}" for count in dict.fromkeys((params[0], params[-1])))
        if params
        else "unknown"
    )
    return (
        f"Group {report.group.name}: {_count(len(report.rows), 'variant')}, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}; {size} parameters; corpus "
        f"{config.data.name}; {tokens:,} tokens a run ({train.num_steps} steps × {train.global_batch_size} sequences × "
        f"{train.seq_len} tokens). Losses are validation losses in nats per token; "
        f"Δ is the mean difference to {report.reference_name} within a seed."
    )


def summary(report: Report) -> str:
    """One sentence that claims no more than the runs carry."""
    ranked = _ranked(report)
    if not ranked:
        if any(row.num_seeds for row in report.rows):
            return (
                "No seed has finished in every variant that has a loss: there is no order to read."
            )
        return "No run has finished: there is nothing to compare."
    if len(ranked) == 1:
        return f"Only {ranked[0].name} has finished ({_fixed(ranked[0].loss_mean, 4)}): there is nothing to compare."
    best, worst = (f"{row.name} ({_fixed(row.loss_mean, 4)})" for row in (ranked[0], ranked[-1]))
    ends = f"best {best}, worst {worst}; {_tau_clause(report)}."
    counts = sorted({row.num_seeds for row in ranked})
    if counts == [1]:
        return f"One seed: no difference here can be called real; {ends}"
    sds = sorted(row.loss_sd for row in ranked if row.loss_sd is not None)
    spread = "–".join(_fixed(sd, 4) for sd in dict.fromkeys((sds[0], sds[-1])))
    return (
        f"{'–'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds, significance not yet tested, so no "
        f"difference here is called real; mean order {_order(report)}; sd over seeds {spread} nats; {ends}"
    )


def notes(report: Report) -> list[str]:
    """What the numbers do not show: runs without one, unequal seeds, marks of interrupted runs, folders left out."""
    group = report.group
    said = [
        "Ranks: ours among the variants here that have a loss, the published among its nine; "
        f"published losses: {published.SOURCE}."
    ]
    if not any(row.label == report.reference and row.num_seeds for row in report.rows):
        said.append(f"{report.reference_name} has no finished run here, so there is no Δ.")
    said += [note for run in group.runs for note in _run_notes(run)]
    said += _seed_notes(report)
    said += [
        f"{name} learns its frequencies: its initial weights hold them, and no hash shows the rest to be the others'."
        for name in sorted({run.variant_name for run in group.runs if run.config.pe.trainable})
    ]
    for key in ("device", "torch", "world_size", "num_threads", "git"):
        values = Counter(_of_env(run.env[key]) for run in group.runs if key in run.env)
        if len(values) > 1:
            listed = ", ".join(
                f"{value} ({_count(values[value], 'run')})" for value in sorted(values)
            )
            said.append(f"Runs differ in {key}: {listed}.")
    return said + [
        f"{folder} holds no run <pe>/seed<k> and was left out." for folder in group.left_out
    ]


def _of_env(value: object) -> str:
    """A value of env.json in a note: a commit by its first digits, + where the tree was changed."""
    if isinstance(value, dict):
        return f"{value.get('commit')!s:.10}{'+' if value.get('dirty') else ''}"
    return str(value)


def _run_notes(run: Run) -> list[str]:
    name, steps = f"{run.variant_name}, seed {run.config.seed}", run.config.train.num_steps
    said = [f"{name}: {mark} ({run.where})." for mark in run.env.get("marks", [])]
    last = run.metrics[-1] if run.metrics else {"step": 0}
    if run.result is None:
        said.append(f"{name}, is unfinished: at step {last['step']} of {steps} ({run.where}).")
    elif run.status == "diverged":
        said.append(
            f"{name}, diverged at step {run.result['diverged_step']} of {steps} ({run.where})."
        )
    return said


def _seed_notes(report: Report) -> list[str]:
    """Means over different seeds are not means of the same thing; Δ is, over the seeds that it names."""
    seeds = {
        variant.label: set(variant.loss_by_seed)
        for variant in report.group.variants()
        if variant.loss_by_seed
    }
    everywhere: set[int] = set().union(*seeds.values())
    base = seeds.get(report.reference, set())
    return [
        f"{row.name}: mean over {_seeds(mine)}, Δ over {'the same' if mine <= base else _seeds(mine & base)}."
        for row in report.rows
        if (mine := seeds.get(row.label)) and (mine != everywhere or mine != mine & base)
    ]


def assumptions(report: Report) -> list[str]:
    """Each choice that the source leaves open, with the value it had here."""
    config = _config(report)
    data, tokens, model = config.data, config.tokenizer, config.model
    optim, schedule, train = config.optim, config.schedule, config.train
    decay = (
        ""
        if isinstance(schedule, CosineConfig)
        else f" over the last {schedule.decay_fraction:.0%}"
    )
    limit = f"the first {data.max_tokens:,} tokens" if data.max_tokens else None
    corpus = ", ".join(filter(None, (data.name, data.path, data.subset, data.revision, limit)))
    vocabulary = (
        f", vocabulary {tokens.vocab_size}"
        if tokens.vocab_size
        else f", {tokens.path}"
        if tokens.path
        else ""
    )
    turns = sorted(
        {
            (pe.base, pe.fraction, pe.start, pe.trainable)
            for pe in (run.config.pe for run in report.group.runs)
        }
    )
    return [
        f"Corpus: {corpus}.",
        f"Tokenizer: {tokens.name} ({tokens.kind}{vocabulary}).",
        f"Model: {model.num_hidden_layers} layers, width {model.hidden_size}, SwiGLU {model.intermediate_size}, "
        f"{model.num_attention_heads} heads of {model.head_dim} ({model.num_key_value_heads} of keys and values), "
        f"{'tied' if model.tie_word_embeddings else 'untied'} head, scale 1/√{model.head_dim} in every variant.",
        f"Learning rate: {optim.lr:g} at its peak, the same for every variant; AdamW with betas {optim.betas[0]:g} "
        f"and {optim.betas[1]:g}, weight decay {optim.weight_decay:g} of matrices, clipping at {optim.grad_clip:g}.",
        f"Schedule: {schedule.name}, {schedule.warmup_fraction:.0%} of the steps warming up, "
        f"down to {schedule.final_fraction:.0%} of the peak{decay}.",
        f"Length: {train.seq_len} tokens.",
        f"Batch: {train.global_batch_size} sequences, {train.global_batch_size * train.seq_len:,} tokens a step, "
        f"{train.num_steps} steps.",
        "O's direction: o turns back, by R^T at the query's position, in every variant that turns O.",
        "Pairing: half-split, feature f with f + K/2, as LLaMA in transformers.",
        *(
            f"Frequencies: base {base:g}, {fraction:.0%} of a head's features, first position {start}, "
            f"{'learned' if learned else 'fixed'}."
            for base, fraction, start, learned in turns
        ),
        "Initialisation: normal, deviation 0.02, projections onto the residual stream times 1/√(2 × layers); "
        "the same initial weights for every variant of a seed.",
        f"Precision: {train.precision}"
        + (" autocast over float32 weights." if train.precision == "bf16" else "."),
        "Documents: packed one after another, an end-of-text token between them, without attention masks.",
        f"Evaluation: mean nats per token on {train.eval_sequences} fixed held-out windows of {train.seq_len} tokens "
        "(all there are, if the held-out set is smaller).",
    ]


def _tau_clause(report: Report) -> str:
    if report.tau is None:
        return f"Kendall's tau-b against the published order is undefined (n = {report.tau_n})"
    return f"Kendall's tau-b against the published order is {report.tau:.3f} (n = {report.tau_n})"


def _order(report: Report) -> str:
    return ", ".join(row.name for row in _ranked(report))


def _ranked(report: Report) -> list[Row]:
    """The rows that stand in an order: those with a loss, where they share a seed."""
    return [row for row in report.rows if row.rank is not None]


def _config(report: Report) -> RunConfig:
    """Any run's: what is read of it here is the same in all of a group."""
    return report.group.runs[0].config


# -- cells -------------------------------------------------------------------------------------------------------------


def _headers(report: Report) -> list[str]:
    delta = f"Δ to {report.reference_name}"
    words = ["variant", "rotates", "seeds", "loss (mean)", "sd over seeds", delta]
    return [*words, "published loss", f"published {delta}", "rank", "published rank"]


def _cells(row: Row) -> list[str]:
    published_rank = ranks(published.LOSSES).get(row.label)
    return [
        row.name,
        " ".join(row.rotate) or DASH,
        str(row.num_seeds),
        row.verdict if row.loss_mean is None else _fixed(row.loss_mean, 4),
        _fixed(row.loss_sd, 4),
        _signed(row.delta, 4),
        _fixed(row.published_loss, 3),
        _signed(row.published_delta, 3),
        DASH if row.rank is None else str(row.rank),
        DASH if published_rank is None else str(published_rank),
    ]


def _fixed(value: float | None, decimals: int) -> str:
    return DASH if value is None else f"{value:.{decimals}f}"


def _signed(value: float | None, decimals: int) -> str:
    """With its sign, which exactly 0 (the reference itself) does not have."""
    return _fixed(value, decimals) if value is None or value == 0 else f"{value:+.{decimals}f}"


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {_one_line(item)}" for item in items)


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _seeds(seeds: Iterable[int]) -> str:
    listed = sorted(seeds)
    return (
        ("seed " if len(listed) == 1 else "seeds ") + ", ".join(map(str, listed))
        if listed
        else "no seed"
    )
