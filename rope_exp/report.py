"""The table of a report: rows by label, judged pairs, what other files add, and its files.

A file of notes/ or probes/ adds to a report by its `REPORT`, a `Part`, and a file of figures/ by
its `FIGURE`, a `Figure` (docs/extending.md).
"""

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import pandas as pd

from rope_exp import comparable, stats
from rope_exp.comparable import ROW, ROW_RATE, Published, Row, spelled
from rope_exp.config import RunConfig
from rope_exp.files import lock, write_atomically
from rope_exp.folder import ReportError, Run
from rope_exp.identity import choice_names, import_choice
from rope_exp.listing import LISTING, check_below, listing_of, remove_listed
from rope_exp.probes._places import Places
from rope_exp.published import about
from rope_exp.stats import FULL_SEEDS, SEEDS_NEEDED, Pair
from rope_exp.tables import (
    Column,
    Table,
    bullets,
    csv_of,
    interval,
    number,
    paragraphs,
    spell_p,
)

if TYPE_CHECKING:
    # Only for a type: altair takes a second to import, and `report --help` draws nothing.
    import altair as alt

# A verdict is about a pair's first row. Here that is the reference; this gives the verdict about
# the other row.
ON_OTHER_ROW = {"better": "worse", "worse": "better", "equivalent": "equivalent", "open": "open"}
PROVISIONAL = "(provisional)"  # what fewer than `FULL_SEEDS` seeds show

# The first columns of table.csv. Programs may read the first 13 by their place.
_FIRST_COLUMNS = (
    "group",
    "pe",
    "rotate",
    "num_seeds",
    "loss_mean",
    "loss_sd",
    "delta",
    "delta_ci_low",
    "delta_ci_high",
    "p_holm",
    "verdict",
    "published_loss",
    "published_delta",
    "p_adjusted",
    "family",
    "delta_wide_low",
    "delta_wide_high",
    "p_equivalent",
    *SEEDS_NEEDED,
)
# The members of a `Part` that return texts.
Texts = Literal["answer", "caption", "summary", "tables", "notes", "assumptions", "terminal"]


def perplexity(loss: float) -> float:
    """Return e to a loss in nats per token."""
    # Past this a float overflows.
    return math.exp(loss) if loss < 709 else math.inf


def bits_per_byte(loss: float, config: RunConfig, env: Mapping[str, Any]) -> float | None:
    """Return a loss as bits per byte of held-out text.

    Args:
        loss: in nats per token.
        config: the run's.
        env: the run's env.json, which has the sizes of the corpus.
    Returns:
        None if the corpus is no text, or if tokens are not predicted one after another.
    """
    corpus = env.get("corpus", {})
    sizes = [corpus.get(key, {}).get("validation") for key in ("tokens", "text_bytes")]
    if None in sizes or not config.causal:
        return None
    num_tokens, num_bytes = sizes
    return float(loss * num_tokens / num_bytes / math.log(2))


@dataclass(frozen=True, eq=False)
class Report:
    """The input of all tables, sentences and figures."""

    keys: Sequence[str]  # the factors that distinguish rows
    source: Published  # what was published about such rows
    rows: Mapping[str, Row]  # by label, best first
    reference: Row  # without runs if the comparison has none
    left_out: Mapping[str, str]  # folders without a readable run, and the reason
    losses: pd.DataFrame  # by seed and row, for rows that have any
    # The frames of `stats.judge`, by family: "published" relations, each row against the
    # "reference", and "all" pairs.
    pairs: Mapping[str, pd.DataFrame]

    @property
    def runs(self) -> list[Run]:
        """All runs, by row and seed."""
        return [run for row in self.rows.values() for run in row.runs]

    @property
    def is_tested(self) -> bool:
        """True if any two rows share two seeds."""
        return len(self.pairs["all"]) > 0

    @property
    def groups(self) -> str:
        """The groups of the runs."""
        return ", ".join(sorted({run.group for run in self.runs}))

    @property
    def of_variants(self) -> bool:
        """True if rows differ only in their variant."""
        return list(self.keys) == ["pe"]

    @property
    def uneven(self) -> set[str]:
        """Labels of the rows that lack a seed, or of all if the reference lacks one."""
        holes = self.losses.isna().any()
        if holes.get(self.reference.label, True):
            return {*map(str, self.losses)}
        return {*map(str, self.losses.columns[holes])}

    @property
    def unit(self) -> str:
        """The unit of losses."""
        return " or ".join(dict.fromkeys(run.config.unit for run in self.runs))

    @property
    def margin_unit(self) -> str:
        """The unit of the margin."""
        return "nats" if self.unit.startswith("nats") else f"of {self.unit}"

    def answers(self, probe: str) -> dict[str, list[Any]]:
        """Return the answers to a probe by row, for rows with any."""
        answers = {}
        for row in self.rows.values():
            of_row = [run.probes[probe] for run in row.runs if probe in run.probes]
            if of_row:
                answers[row.label] = of_row
        return answers

    def numbers(self, probe: str) -> dict[str, pd.DataFrame]:
        """Return the numbers of a probe's answers by row, as `Places.by_seed`, for rows with any.

        A probe without places, or one whose file was deleted, has none.
        """
        if probe not in choice_names("probes"):
            return {}
        places = report_leaf("probes", probe).REPORT.places
        if places is None:
            return {}
        return {label: places.by_seed(self.rows[label], probe) for label in self.answers(probe)}

    def texts(self, member: Texts) -> list[str]:
        """Return the texts of one kind that all parts have, such as the `notes`, in their order."""
        texts: list[str] = []
        for _, part in parts("notes", "probes"):
            texts_of = getattr(part, member)
            texts += texts_of(self)
        return texts

    @cached_property
    def charts(self) -> dict[str, bytes]:
        """The figures that the runs allow, as SVG files by name."""
        # Imported late: altair takes a second, which a table need not wait for.
        from rope_exp.svg import drawn

        charts = {}
        for name, figure in figures().items():
            svg = drawn(figure.draw, self)
            if svg is not None:
                charts[name] = svg
        return charts

    def against_reference(self, family: str) -> pd.DataFrame:
        """Return the pairs (reference, row) of a family, by row."""
        pairs = pd.concat([self.pairs[family], stats.exchanged(self.pairs[family])])
        return pairs[pairs["a"] == self.reference.label].set_index("b")

    @cached_property
    def decided(self) -> dict[str, Pair]:
        """The pair (reference, row) behind each row's verdict, by row.

        A published relation has its verdict from its own, primary family.
        """
        primary = self.against_reference("published")
        others = self.against_reference("reference").drop(primary.index)
        pairs: Any = pd.concat([primary, others]).to_dict("index")
        return dict(pairs)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The numbers of each row, by its label: the columns of table.csv, and ranks."""
        parts = [_run_columns(self), _loss_columns(self), _test_columns(self)]
        columns = pd.concat(parts, axis="columns")
        others = [key for key in columns if key not in _FIRST_COLUMNS]
        return columns[[*_FIRST_COLUMNS, *others]]

    def verdict(self, row: Row, *, for_readers: bool = False) -> str:
        """Return a row's verdict and its mark; empty without a verdict, unless it is mixed.

        Only text `for_readers` says that a verdict is provisional: programs compare the words of
        table.csv, which has the number of seeds in a column.
        """
        pair = self.decided.get(row.label)
        if pair is None:
            return comparable.MIXED if row.is_mixed else ""
        parts = [ON_OTHER_ROW[pair["verdict"]]]
        if for_readers:
            parts.append(provisional(pair))
        parts.append(row.mark)
        return " ".join(filter(None, parts))

    @cached_property
    def lines(self) -> dict[str, dict[str, Any]]:
        """`frame` as mappings by label, with None for missing values."""
        frame = self.frame.astype(object)
        lines: Any = frame.where(frame.notna(), None).to_dict("index")
        return dict(lines)


def _run_columns(report: Report) -> pd.DataFrame:
    """Return what each row is: its group, its values of the factors, its size."""
    # Imported late: it takes torch, which `report --help` need not wait for.
    from rope_exp.costs import cached_sizes

    lines = []
    for row in report.rows.values():
        run = row.runs[0]
        config = run.config
        params = [run.result["params"] for run in row.runs if run.result]
        cached, state = cached_sizes(config.attn, config.model, config.pe)
        line: dict[str, Any] = {
            "group": run.group,
            "pe": config.pe.label,
            "rotate": "".join(config.pe.rotate),
        }
        for key in report.keys:
            line.setdefault(key, spelled(config, key))
        line["kind"] = config.attn.label
        line["params"] = params[0] if params else None
        line["cached"] = cached
        line["state"] = state
        lines.append(line)
    counts = dict.fromkeys(("params", "cached", "state"), "Int64")
    return pd.DataFrame(lines, index=[*report.rows]).astype(counts)


def _loss_columns(report: Report) -> pd.DataFrame:
    """Return each row's losses over seeds, ours and the published ones."""
    table = stats.table_of({row.label: row.losses for row in report.rows.values()})
    ours = stats.summary(table, report.reference.label).reindex([*report.rows])
    # Each loss was published once, so it counts as one seed.
    known = stats.table_of({label: {0: loss} for label, loss in report.source.losses.items()})
    theirs = stats.summary(known, report.reference.label).reindex([*report.rows])

    bits: Any = []
    for label, row in report.rows.items():
        run = row.runs[0]
        bits.append(bits_per_byte(ours["loss_mean"][label], run.config, run.env))
    return ours.assign(
        perplexity=ours["loss_mean"].map(perplexity).where(pd.notna(bits)),
        bits_per_byte=bits,
        published_loss=theirs["loss_mean"],
        published_delta=theirs["delta"],
        published_rank=theirs["rank"],
    )


def _test_columns(report: Report) -> pd.DataFrame:
    """Return the tests of each row against the reference, in two families."""
    labels = [*report.rows]
    against_reference = report.against_reference("reference").reindex(labels)
    columns = against_reference[["delta_ci_low", "delta_ci_high", "p_equivalent", *SEEDS_NEEDED]]
    over_all_pairs = report.against_reference("all").reindex(labels)
    return columns.assign(
        # `p_holm`: the family of the reference; `p_adjusted`: all pairs.
        p_holm=against_reference["p_adjusted"],
        verdict=[report.verdict(row) or row.status for row in report.rows.values()],
        p_adjusted=over_all_pairs["p_adjusted"],
        family=over_all_pairs["family"].map("{:.0f} pairs".format, na_action="ignore"),
        delta_wide_low=over_all_pairs["delta_wide_low"],
        delta_wide_high=over_all_pairs["delta_wide_high"],
    )


def no_texts(report: Report) -> list[str]:
    """Return no text, as the member of a part that leaves it out."""
    return []


def no_files(report: Report) -> dict[str, str]:
    """Return no file, as a part that leaves `files` out."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a file of notes/ or probes/ adds to a report; each member may be left out.

    Attributes:
        order: the place among all parts. Parts of one order follow the names of folder and file.
        answer: returns paragraphs that the page opens on.
        caption: returns sentences for the line above the table.
        summary: returns paragraphs below the table.
        tables: returns paragraphs, and tables in Markdown, below the summary.
        notes: returns sentences below the tables, a bullet each.
        assumptions: returns sentences of the list at the end, a bullet each.
        terminal: returns lines that `rope-exp report` prints.
        files: returns the texts of further files, by their names.
        places: the keys of numbers in a probe's answers, which then join probes.csv.
    """

    order: int = 0
    answer: Callable[[Report], list[str]] = no_texts
    caption: Callable[[Report], list[str]] = no_texts
    summary: Callable[[Report], list[str]] = no_texts
    tables: Callable[[Report], list[str]] = no_texts
    notes: Callable[[Report], list[str]] = no_texts
    assumptions: Callable[[Report], list[str]] = no_texts
    terminal: Callable[[Report], list[str]] = no_texts
    files: Callable[[Report], dict[str, str]] = no_files
    places: Places | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The chart of a report that a file of figures/ draws.

    Attributes:
        order: the place among the figures. Figures of one order follow the names of their files.
        draw: returns the chart, or None if the report does not allow it.
    """

    order: int
    draw: "Callable[[Report], alt.TopLevelMixin | None]"


class ReportLeaf(Protocol):
    """A file of notes/ or probes/, as a report meets it."""

    @property
    def REPORT(self) -> Part: ...


class FigureLeaf(Protocol):
    """A file of figures/."""

    @property
    def FIGURE(self) -> Figure: ...


def report_leaf(folder: str, name: str) -> ReportLeaf:
    """Return a file of notes/ or probes/."""
    return cast("ReportLeaf", import_choice(folder, name, folder, members=["REPORT"]))


def figure_leaf(name: str) -> FigureLeaf:
    """Return a file of figures/."""
    return cast("FigureLeaf", import_choice("figures", name, "figures", members=["FIGURE"]))


def parts(*folders: Literal["notes", "probes"]) -> list[tuple[str, Part]]:
    """Return the names and the parts of all files of these folders, in their order."""
    named = []
    for folder in folders:
        named += [(name, report_leaf(folder, name).REPORT) for name in choice_names(folder)]
    return sorted(named, key=lambda item: item[1].order)


def figures() -> dict[str, Figure]:
    """Return the figures by the names of their files, in their order."""
    named = {name: figure_leaf(name).FIGURE for name in choice_names("figures")}
    return dict(sorted(named.items(), key=lambda item: item[1].order))


def build(
    runs: Sequence[Run],
    keys: Sequence[str],
    reference: str | None = None,
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Arrange runs in rows by factors, and judge the rows.

    Args:
        runs: finished, diverged and unfinished ones.
        keys: the factors that distinguish rows, such as `pe`, but not the seed.
        reference: the label or the name of the row that differences are against. None: the default
            one (`comparable.default_reference`), which may be missing from the runs.
        left_out: folders that could not be read, and the reasons, for the notes of the report.
    Returns:
        The report, with rows best first, and all pairs judged.
    Raises:
        ReportError: the runs may not share a table, or `reference` does not match one row.
    """
    rows = comparable.rows_of(runs, keys)
    if reference is None:
        labels = [comparable.default_reference(rows, keys)]
    else:
        named = [label for label, row in rows.items() if row.name == reference]
        labels = [reference] if reference in rows else named
    if len(labels) != 1:
        raise ReportError(
            f"--reference {reference} matches {len(labels) or 'no'} rows. "
            f"Available: {', '.join(rows)}"
        )
    [reference_label] = labels
    source = about(runs, keys)
    if source.losses and source.losses.keys().isdisjoint(rows):
        source = Published()

    table = stats.table_of({row.label: row.losses for row in rows.values()})
    ordered = {label: rows[label] for label in stats.summary(table, reference_label).index}
    losses = table[[*ordered]].dropna(axis="columns", how="all")
    trained = [*map(str, losses)]
    families: dict[str, Iterable[tuple[str, str]]] = {
        "published": source.signs,
        "reference": [(reference_label, label) for label in trained if label != reference_label],
        "all": [*itertools.combinations(trained, 2)],
    }
    pairs = {name: stats.judge(losses, family) for name, family in families.items()}
    reference_row = rows.get(reference_label, Row(reference_label, reference_label, 0, []))
    return Report(keys, source, ordered, reference_row, left_out, losses, pairs)


def main_table(report: Report) -> Table:
    """Return the table of rows; published columns only if there is a published table."""
    delta = f"Δ to {report.reference.name}"
    texts = pd.DataFrame([_row_texts(report, row) for row in report.rows.values()])
    frame = report.frame.join(texts.set_index(report.frame.index))

    columns = [
        Column("variant" if report.of_variants else ", ".join(report.keys), "name"),
        Column("rotates", "rotates"),
    ]
    if ROW in report.keys:
        columns += [
            Column("kind", "attention"),
            Column("parameters", "params", ",d"),
            Column("cached per token and layer", "cache"),
        ]
    if ROW_RATE not in report.keys and frame["learning_rate"].nunique() > 1:
        columns.append(Column("learning rate", "learning_rate"))

    columns += [Column("seeds", "num_seeds", "d"), Column("loss (mean)", "loss", "s")]
    if frame["bits_per_byte"].any():
        columns += [
            Column("perplexity", "perplexity", ".2f"),
            Column("bits per byte", "bits_per_byte", ".4f"),
        ]
    columns += [Column("sd over seeds", "loss_sd", ".4f"), Column(delta, "delta", "+.4f")]
    if report.is_tested:
        columns += [
            Column("95 % interval", "interval"),
            Column("p (Holm)", "p"),
            Column("verdict", "marked"),
        ]
    if report.source.losses:
        columns += [
            Column("published loss", "published_loss", ".3f"),
            Column(f"published {delta}", "published_delta", "+.3f"),
        ]
    columns.append(Column("rank", "rank", "d"))
    if report.source.losses:
        columns.append(Column("published rank", "published_rank", "d"))
    return Table(columns, frame)


def _row_texts(report: Report, row: Row) -> dict[str, Any]:
    """Return the cells of a row that are text, by the keys of `main_table`."""
    config = row.runs[0].config
    line = report.lines[row.label]
    low = line["delta_ci_low"]
    high = line["delta_ci_high"]
    ci = interval(low, high)
    p = None
    marked = None
    pair = report.decided.get(row.label)
    if pair is not None:
        p = adjusted_p(pair)
        marked = report.verdict(row, for_readers=True)
        # The unadjusted interval excludes 0, but the adjusted test is open: show both.
        if ci and low * high > 0 and pair["verdict"] == "open":
            ci += f" (adjusted: {interval(pair['delta_wide_low'], pair['delta_wide_high'])})"

    sizes = []
    if line["cached"]:
        sizes.append(f"{line['cached']:,}")
    if line["state"]:
        sizes.append(f"{line['state']:,} fixed")
    loss = number(line["loss_mean"], ".4f") or row.status
    if row.label in report.uneven:
        loss += " ‡"
    return {
        "name": row.name,
        "rotates": " ".join(config.pe.rotate),
        "attention": config.attn.kind,
        "cache": None if line["cached"] is None else ", plus ".join(sizes) or "0",
        "learning_rate": spelled(config, ROW_RATE),
        "loss": loss,
        "interval": ci,
        "p": p,
        "marked": marked,
    }


def provisional(pair: Pair) -> str:
    """Return the word for a difference or an equality that few seeds show; else empty text."""
    is_full = pair["verdict"] == "open" or pair["num_seeds"] >= FULL_SEEDS
    return "" if is_full else PROVISIONAL


def adjusted_p(pair: Pair) -> str:
    """Return the p-value of the test that gave a pair's verdict, adjusted over its family."""
    return spell_p(pair["p_equivalent" if pair["verdict"] == "equivalent" else "p_adjusted"])


def table_md(report: Report, figures: Iterable[str] = ()) -> str:
    """Return table.md: the table, the summary, further tables, figures, notes, assumptions."""
    title = "Assumptions that the source leaves open (docs/comparing.md lists those without a key):"
    return paragraphs(
        *(f"**{caption}**" for caption in report.texts("caption")),
        main_table(report).markdown(),
        *report.texts("summary"),
        *report.texts("tables"),
        *(f"![{name}](figures/{name}.svg)" for name in figures),
        *bullets("Notes:", report.texts("notes")),
        *bullets(title, report.texts("assumptions")),
    )


def table_csv(report: Report) -> str:
    """Return table.csv."""
    return csv_of(report.frame.drop(columns=["rank", "published_rank"]), signed=True)


def files_of(report: Report, *, figures: bool = True) -> dict[str, bytes]:
    """Return the files of a table."""
    charts = report.charts if figures else {}
    texts = {"table.md": table_md(report, charts), "table.csv": table_csv(report)}
    for _, part in parts("notes", "probes"):
        texts |= part.files(report)
    drawn = {f"figures/{name}.svg": svg for name, svg in charts.items()}
    return {name: text.encode() for name, text in texts.items()} | drawn


def write_all(out: Path, files: Mapping[str, bytes]) -> None:
    """Write a table's files, and remove those of the last table in this folder that it lacks.

    `LISTING` has the names and digests of the files that the last call wrote. A file that it does
    not name, or that was changed since, is not removed. If two commands write one folder, the
    second waits.

    Args:
        out: the table's folder.
        files: the contents by their paths below `out`.
    Raises:
        RunFolderError: the listing is damaged, or a path leads out of `out`. Nothing is written.
    """
    check_below(out, files)
    out.mkdir(parents=True, exist_ok=True)
    lock_file = out / f"{LISTING}.lock"
    with os.fdopen(lock(lock_file), "wb"):
        try:
            remove_listed(out, files)
            write_files(out, {LISTING: listing_of(files), **files})
        finally:
            lock_file.unlink(missing_ok=True)


def write_files(out: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their paths below a folder, and keep no list of them.

    Raises:
        RunFolderError: a path leads out of `out`. Nothing is written.
    """
    check_below(out, files)
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
