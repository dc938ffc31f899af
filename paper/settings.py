"""Each variant's difference from QK-RoPE in every setting with both, in paper/results/settings."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from rope_exp.campaign.tables import tables_of
from rope_exp.comparable import REFERENCE, ROW_RATE, SEEDS, spelled
from rope_exp.folder import Run
from rope_exp.report import ON_OTHER_ROW, Report, build
from rope_exp.stats import ALPHA
from rope_exp.tables import markdown_table, millions, paragraphs

# The other eight of the nine, in the published order.
COLUMNS = ["qkvo_rope", "k_rope", "vo_rope", "qkv_rope", "nope", "o_rope", "q_rope", "v_rope"]
# The campaign that varies initial weights and the order of batches apart. It has a page, no table.
PILOT = "noise"


def files(
    campaigns: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return settings.md and settings.csv, of the runs of every campaign.

    Args:
        campaigns: those whose tables are made already.
        records: the runs of every campaign.
        tables: the tables that are made, by folder.
    Returns:
        The files by their paths; empty with fewer than two settings.
    """
    levels = {name: tables_of(runs) for name, runs in records.items() if name not in campaigns}
    levels[PILOT] = pilot_tables(records[PILOT])
    every = dict(tables)
    for campaign, reports in levels.items():
        for level, report in reports.items():
            every[str(Path(campaign, level))] = report
    return files_of_tables(every)


def pilot_tables(runs: Sequence[Run]) -> dict[str, Report]:
    """Return the pilot's tables by learning rate, of its runs that are made as other campaigns'.

    Their weights and order of batches share a seed. Of the other runs, some repeat these with
    another kernel or precision.
    """
    by_rate: dict[str, list[Run]] = {}
    for run in runs:
        shares_seed = run.config.data.seed == run.config.seed
        if shares_seed and not {*run.factors} - {*SEEDS, ROW_RATE}:
            # As other campaigns say it: the order follows the run's seed.
            data = replace(run.config.data, seed=None)
            plain = replace(run, config=replace(run.config, data=data))
            rate = f"{ROW_RATE}={spelled(run.config, ROW_RATE)}"
            by_rate.setdefault(rate, []).append(plain)
    return {rate: build(members, ["pe"]) for rate, members in by_rate.items()}


def files_of_tables(tables: Mapping[str, Report]) -> dict[str, bytes]:
    """Return settings.md and settings.csv of some tables, by their folders.

    Tables without the reference, tables with rows that are not variants, and tables that only run
    the cells of a larger one again are left out. Empty with fewer than two settings.
    """
    settings: dict[str, Report] = {}
    seen: list[set[str]] = []
    for place, report in sorted(tables.items(), key=lambda item: (-len(item[1].runs), item[0])):
        hashes = {run.config.config_sha256 for run in report.runs}
        is_setting = report.of_variants and report.reference.label == REFERENCE
        deltas = {report.lines[label]["delta"] for label in COLUMNS if label in report.rows}
        if is_setting and deltas - {None} and not any(hashes <= larger for larger in seen):
            settings[place] = report
            seen.append(hashes)
    if len(settings) < 2:
        return {}

    titles = _titles(settings)
    names: dict[str, str] = {}
    every_line: list[dict[str, Any]] = []
    for place, report in settings.items():
        names |= {label: row.name for label, row in report.rows.items()}
        every_line += _lines(place, report)
    every = pd.DataFrame(every_line)
    parts = [
        f"**Each variant's loss minus that of {names[REFERENCE]}, in every setting with "
        "both:** mean within a seed, with the number of seeds in parentheses. A star marks a "
        "difference that a paired t test distinguishes from 0 (at least two seeds; adjusted by "
        "Holm: QKVO's among the published relations, the others' among the differences from QK). "
        "The linked tables of the first protocol pooled the noise, so they may judge otherwise. "
        "Settings with more runs come first. A setting that only repeats cells of another is left "
        "out, and so are tables whose rows differ in more than the variant. A difference from one "
        "seed says little. Intervals, and variants beyond the nine, are in settings.csv."
    ]
    first = every.groupby("setting", sort=False).first()
    links = [_link(titles[place], place) for place in first.index]
    lines = pd.DataFrame({"setting": links, "in": first["unit"]})
    lines[["parameters", "tokens"]] = first[["parameters", "tokens"]].map(millions)
    lines["warmup"] = first["warmup_steps"].map("{:,}".format)
    cells = every.pivot(index="setting", columns="pe", values="cell")
    for label in COLUMNS:
        if label in names:
            lines[names[label].removesuffix("-RoPE")] = cells[label]
    is_text = lines.index.isin(
        [place for place in settings if settings[place].runs[0].config.task is None]
    )
    for title, kept in (
        ("Text, in nats per token:", lines[is_text].drop(columns="in")),
        ("Generated data:", lines[~is_text]),
    ):
        parts += [title, markdown_table(kept)] if len(kept) else []

    table = every.drop(columns="cell").to_csv(index=False, float_format="%.6f")
    return {
        "settings/settings.csv": table.encode(),
        "settings/settings.md": paragraphs(*parts).encode(),
    }


def _link(title: str, place: str) -> str:
    """Return a link of settings.md to a setting's table, or to the pilot's page."""
    if place.startswith(f"{PILOT}/"):
        return f"[{title}](../{PILOT}/{PILOT}.md)"
    # A space is no part of a link.
    path = quote(f"../{place}/table.md", safe="/=,+")
    return f"[{title}]({path})"


def _titles(settings: Mapping[str, Report]) -> dict[str, str]:
    """Return a title for each setting: its campaign, and its differences from others there."""
    titles = {}
    for place, report in settings.items():
        run = report.runs[0]
        same = [other.runs[0] for other in settings.values() if other.groups == report.groups]
        configs = [other.config for other in same]
        # Some settings of a campaign name a key that others leave at its default.
        keys = dict.fromkeys(key for other in same for key in other.factors if key not in SEEDS)
        parts = [run.group]
        for key in keys:
            if len({spelled(config, key) for config in configs}) > 1:
                parts.append(f"{key.rpartition('.')[2]}={spelled(run.config, key)}")
        if {config.attn.label for config in configs} != {"softmax"}:
            parts.append(run.config.attn.label)
        titles[place] = ", ".join(parts)
    return titles


def _lines(place: str, report: Report) -> Iterator[dict[str, Any]]:
    """Yield a line for each variant that shares a seed with QK-RoPE: the CSV's, and its `cell`."""
    for label, line in report.lines.items():
        if line["delta"] is None or label == report.reference.label:
            continue
        judged = report.decided.get(label, {})
        star = "*" if judged and judged["p_adjusted"] < ALPHA else ""
        num_seeds = judged.get("num_seeds", 1)
        config = report.runs[0].config
        yield {
            "setting": place,
            "pe": label,
            "unit": report.unit,
            "parameters": report.runs[0].result["params"],
            "tokens": config.train.num_tokens,
            "warmup_steps": config.num_warmup_steps,
            "num_seeds": num_seeds,
            **{key: line[key] for key in ("delta", "delta_ci_low", "delta_ci_high", "p_holm")},
            "verdict": ON_OTHER_ROW[judged["verdict"]] if judged else "untested",
            "cell": f"{line['delta']:+.3f}{star} ({num_seeds})",
        }
