"""Test that README.md, results/README.md and results.md print what the tables say."""

import csv
import re
from pathlib import Path

import pandas as pd
import tables
from support.configs import REPOSITORY
from support.links import broken_links

from rope_exp.campaign.tables import ANSWER
from rope_exp.sections import subset_name

# The results of the campaign whose table the README shows.
SHOWN = tables.RESULTS / "nine_26m"


def test_links_of_the_pages_lead_somewhere() -> None:
    """Those of tables, too, which show no figure that is not committed."""
    pages = [*tables.PAPER.glob("*.md")]
    assert len(pages) > 5
    assert broken_links([*pages, *tables.RESULTS.rglob("*.md")]) == []


def test_the_page_opens_on_the_words_of_the_readme() -> None:
    """Its paragraphs are README's, without links."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    without_asides = re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", readme)
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", without_asides)
    paragraphs = (tables.RECORDS / ANSWER).read_text(encoding="utf-8").strip().split("\n\n")
    assert len(paragraphs) > 3
    for paragraph in paragraphs:
        assert paragraph in plain


def test_pages_show_the_table_that_is_committed() -> None:
    """README and results have the rows of the campaign's table.md, and its relations."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    results = (REPOSITORY / "results/README.md").read_text(encoding="utf-8")
    rows, relations = read_tables(SHOWN / "table.md")[:2]
    assert len(rows) == 9
    for row in rows:
        name = row["variant"].removesuffix("-RoPE")
        start = f"| {name} | {row['learning rate']} | {row['loss (mean)']} ({row['sd over seeds']})"
        delta = row["Δ to QK-RoPE"]
        interval = row["95 % interval"].partition(" (")[0].replace("—", "reference")
        published = row["published Δ to QK-RoPE"]
        verdict = row["verdict"]
        assert f"{start} | {delta} | {interval} | {verdict} | {published} |\n" in readme

        cell = "reference" if name == "QK" else f"{delta} ({interval})"
        line = next(line for line in results.splitlines() if line.startswith(start))
        assert line.startswith(f"{start} | {cell} |")
        assert line.endswith(f" | {published} |")

    for row in relations:
        relation = row["published"].replace("-RoPE", "")
        outcome = row["outcome at this setting"].partition(";")[0]
        assert f"| {relation} | {float(row['Δ']):+.3f} | {outcome} |" in results
        assert outcome == "open" or re.search(rf"{outcome} \([^)]*{relation}[,)]", readme)


def read_tables(path: Path) -> list[list[dict[str, str]]]:
    """Return the tables of a Markdown file: lines of cells by heading."""
    found = []
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("|"):
            headings, _, *lines = (line[2:-2].split(" | ") for line in block.splitlines())
            found.append([dict(zip(headings, line, strict=True)) for line in lines])
    return found


DETAILS = tables.PAPER / "results.md"

# The columns of its two tables.
PAPER = ("nine_26m", "english", "table")


def test_the_paper_has_the_differences_of_its_tables() -> None:
    """Cells show the difference ± half its interval, and half the pair's own if that differs."""
    paper = DETAILS.read_text(encoding="utf-8")
    rows: dict[str, list[str]] = {}
    published = {}
    for place in PAPER:
        with (tables.RESULTS / place / "table.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                name = subset_name(tuple(row["rotate"])).removesuffix("-RoPE")
                delta = float(row["published_delta"])
                published[name] = f"{delta:+.3f}" if delta else "0.000"
                rows.setdefault(name, []).append(with_intervals(row))

    assert len(rows) == 9
    for name, cells in rows.items():
        assert f"| {name} | {published[name]} | {' | '.join(cells)} |" in paper


def test_the_paper_has_the_relations_of_its_tables() -> None:
    """Each cell is a pair's difference and outcome."""
    paper = DETAILS.read_text(encoding="utf-8")
    cells: dict[str, dict[str, str]] = {}
    for place in PAPER:
        folder = tables.RESULTS / place
        deltas = {}
        with (folder / "pairs.csv").open(encoding="utf-8") as file:
            for pair in csv.DictReader(file):
                short = [pair[key].removesuffix("_rope").upper() for key in ("a", "b")]
                first, second = (name.replace("NOPE", "NoPE") for name in short)
                deltas[first, second] = float(pair["delta"])
                deltas[second, first] = -float(pair["delta"])

        table = (folder / "table.md").read_text(encoding="utf-8")
        lines = table.partition("| published | ours |")[2].partition("\n\n")[0].splitlines()[2:]
        for line in lines:
            relation, *_, outcome = line.strip("| ").replace("-RoPE", "").split(" | ")
            first, _, second = relation.split()
            word = outcome.partition(";")[0]
            cells.setdefault(relation, {})[place] = f"{deltas[first, second]:+.3f} {word}"

    assert len(cells) == 8
    for relation, found in cells.items():
        row = [found[place] for place in PAPER]
        assert f"| {relation} | {' | '.join(row)} |" in paper


# Settings that are another campaign's, too.
SAME_SETTING = {
    "noise/optim.lr=0.0015": "english",
    "rates_26m/optim.lr=0.0015": "tokens/train.num_steps=6400",
    "lead_26m/optim.lr=0.0015": "tokens/train.num_steps=6400",
    "lead_26m/optim.lr=0.003": "rates_26m/optim.lr=0.003",
    "lead_26m/optim.lr=0.006": "rates_26m/optim.lr=0.006",
}


def test_the_paper_counts_the_settings() -> None:
    """The paper counts the bf16 settings with both variants where the first has less loss."""
    pages = [DETAILS, REPOSITORY / "results" / "README.md"]
    paper = "".join(page.read_text(encoding="utf-8") for page in pages)
    settings = pd.read_csv(tables.RESULTS / "settings" / "settings.csv")
    left_out = settings["setting"].str.contains("mlm|cores|sequel|precision")
    settings = settings[(settings["unit"] == "nats per token") & ~left_out].copy()

    # Campaigns that share a setting count once, with the seeds of all.
    settings["setting"] = settings["setting"].replace(SAME_SETTING)
    settings["sum"] = settings["delta"] * settings["num_seeds"]
    sums = settings.groupby(["setting", "pe"])[["sum", "num_seeds"]].sum()
    deltas = (sums["sum"] / sums["num_seeds"]).unstack().assign(qk_rope=0.0)
    deltas.columns = [name.removesuffix("_rope").upper() for name in deltas.columns]

    lines = re.findall(r"\| (\w+) before (\w+) \| [^|]+ \| (\d+ of \d+) \|", paper)
    assert len(lines) == 2 * 9
    for first, second, count in lines:
        both = deltas[[first.upper(), second.upper()]].dropna()
        assert count == f"{(both.iloc[:, 0] < both.iloc[:, 1]).sum()} of {len(both)}"


def with_intervals(row: dict[str, str]) -> str:
    """Return a difference ± half its interval, and half the pair's own interval if it differs."""
    delta = float(row["delta"])
    if not row["delta_ci_low"]:
        return f"{delta:+.3f} (one seed)" if delta else "reference"
    # Tables of the first protocol, which are frozen, have the paired interval beside their own.
    alone = "_alone" if "verdict_alone" in row else ""
    pooled, own = (
        (float(row[f"delta_ci_high{of}"]) - float(row[f"delta_ci_low{of}"])) / 2
        for of in ("", alone)
    )
    said = f"{delta:+.3f} ± {pooled:.3f}"
    if pooled != own:
        said += f" ({own:.3f})"
    return said if row["verdict"] == row[f"verdict{alone}"] else f"{said} †"
