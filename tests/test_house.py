"""Tests of the repository's structure: imports, light modules, and documents that agree."""

import ast
import csv
import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from support.configs import NINE, REPOSITORY

from rope_exp.sections import subset_name

PACKAGE = REPOSITORY / "rope_exp"


def imported(path: Path) -> list[str]:
    """Return the files and folders of rope_exp that a file imports, once an import."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rope_exp":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("rope_exp.")]
        else:
            continue
        found += [name.split(".")[1] for name in names]
    return found


def test_the_core_imports_no_leaf_and_a_leaf_no_other() -> None:
    """A file at the top is core; a folder is a leaf. Commands may use any."""
    leaves = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")}
    may = {"commands": leaves}
    broken = []
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0]
        allowed = {own} | may.get(own, set())
        broken += [f"{path}: {name}" for name in imported(path) if name in leaves - allowed]
    assert broken == []


def test_what_is_installed_is_all_there_is() -> None:
    """setuptools installs only the packages that are listed, so the list must name them all."""
    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    found = {path.parent for path in PACKAGE.rglob("*.py") if "plugin" not in path.parts}
    names = {".".join(path.relative_to(REPOSITORY).parts) for path in found}
    packages = set(listed["tool"]["setuptools"]["packages"])
    assert packages == names | {"hydra_plugins", "rope_exp.configs"}


def test_nothing_private_of_hydra_is_imported() -> None:
    for path in [*PACKAGE.rglob("*.py"), *(REPOSITORY / "scripts").rglob("*.py")]:
        assert "import hydra._" not in (text := path.read_text(encoding="utf-8")), path
        assert "from hydra._" not in text, path


def test_few_modules_know_a_variant_by_name() -> None:
    """Only the default and the published table know variants by name.

    Studies are exempt: they may name the variants of one paper.
    """
    names = {*NINE, *(label.upper().replace("_ROPE", "-RoPE") for label in NINE)}
    knowing = set()
    core = [path for path in PACKAGE.rglob("*.py") if "studies" not in path.parts]
    for path in [*core, REPOSITORY / "train.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in names:
                knowing.add(str(path.relative_to(REPOSITORY)))
    assert knowing == {"rope_exp/sections.py", "rope_exp/comparable.py"}


# The results of the campaign whose table the README shows.
SHOWN = REPOSITORY / "results" / "nine_26m"


def test_pages_show_the_table_that_is_committed() -> None:
    """README and results have the rows of the campaign's table.md, and its relations."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    results = (REPOSITORY / "results/README.md").read_text(encoding="utf-8")
    rows, relations = tables_of(SHOWN / "table.md")[:2]
    assert len(rows) == 9
    for row in rows:
        name = row["variant"].removesuffix("-RoPE")
        start = f"| {name} | {row['learning rate']} | {row['loss (mean)']} ({row['sd over seeds']})"
        delta = row["Δ to QK-RoPE"]
        interval = row["95 % interval"].partition(" (")[0].replace("—", "reference")
        published = row["published Δ to QK-RoPE"]
        assert f"{start} | {delta} | {interval} | {published} |\n" in readme

        cell = "reference" if name == "QK" else f"{delta} ({interval})"
        line = next(line for line in results.splitlines() if line.startswith(start))
        assert line.startswith(f"{start} | {cell} |") and line.endswith(f" | {published} |")

    for row in relations:
        relation = row["published"].replace("-RoPE", "")
        outcome = row["outcome at this setting"].partition(";")[0]
        assert f"| {relation} | {float(row['Δ']):+.3f} | {outcome} |" in results
        assert outcome == "open" or re.search(rf"{outcome} \([^)]*{relation}[,)]", readme)


def tables_of(path: Path) -> list[list[dict[str, str]]]:
    """Return the tables of a Markdown file: lines of cells by heading."""
    found = []
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("|"):
            headings, _, *lines = (line[2:-2].split(" | ") for line in block.splitlines())
            found.append([dict(zip(headings, line, strict=True)) for line in lines])
    return found


DETAILS = REPOSITORY / "docs" / "paper" / "results.md"

# The columns of its two tables.
PAPER = ("nine_26m", "english", "table")


def test_the_paper_has_the_differences_of_its_tables() -> None:
    """Cells show the difference ± half its interval, and half the pair's own if that differs."""
    paper = DETAILS.read_text(encoding="utf-8")
    rows: dict[str, list[str]] = {}
    published = {}
    for place in PAPER:
        with (REPOSITORY / "results" / place / "table.csv").open(encoding="utf-8") as file:
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
        folder = REPOSITORY / "results" / place
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


def test_the_paper_counts_the_settings() -> None:
    """The paper counts the bf16 settings with both variants where the first has less loss."""
    pages = [DETAILS, REPOSITORY / "results" / "README.md"]
    paper = "".join(page.read_text(encoding="utf-8") for page in pages)
    settings = pd.read_csv(REPOSITORY / "results" / "settings" / "settings.csv")
    # The third test is not counted before it is complete.
    left_out = settings["setting"].str.contains("mlm|cores|sequel|precision|lead_26m|open_26m")
    settings = settings[(settings["unit"] == "nats per token") & ~left_out]
    deltas = settings.pivot(index="setting", columns="pe", values="delta").assign(qk_rope=0.0)
    deltas.columns = [name.removesuffix("_rope").upper() for name in deltas.columns]

    # One combination is in two campaigns: it counts once, with the seeds of both.
    [joined, *_] = tables_of(REPOSITORY / "results/rates_26m/optim.lr=0.0015/all_seeds.md")
    deltas = deltas.drop("rates_26m/optim.lr=0.0015")
    for row in joined:
        label = row["variant"].removesuffix("-RoPE").upper()
        deltas.loc["tokens/train.num_steps=6400", label] = float(row["Δ to QK-RoPE"])

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
    pooled, own = (
        (float(row[f"delta_ci_high{of}"]) - float(row[f"delta_ci_low{of}"])) / 2
        for of in ("", "_alone")
    )
    said = f"{delta:+.3f} ± {pooled:.3f}"
    if pooled != own:
        said += f" ({own:.3f})"
    return said if row["verdict"] == row["verdict_alone"] else f"{said} †"


def test_links_of_the_pages_lead_somewhere() -> None:
    """Each relative link names an existing file, and its anchor one of that file's headings."""
    results = [REPOSITORY / "README.md", *(REPOSITORY / "results").glob("*.md")]
    pages = [*results, *(REPOSITORY / "docs").rglob("*.md")]
    assert len(pages) > 10

    for page in pages:
        links = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
        for target, anchor in links:
            if "://" in target:
                continue
            found = page.parent / target if target else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors(found), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> list[str]:
    """Return the anchors of a page's headings, as links spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]


# The most syntax nodes and lines of each part. Whoever makes one smaller lowers its numbers.
SIZES = {
    "rope_exp/*.py": (48_000, 6_500),
    "rope_exp/**/*.py scripts/*.py": (128_000, 16_500),
    "tests/**/*.py": (140_000, 17_000),
}


@pytest.mark.parametrize("parts", SIZES)
def test_the_house_does_not_grow(parts: str) -> None:
    paths = [path for part in parts.split() for path in REPOSITORY.glob(part)]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    nodes = sum(1 for text in texts for _ in ast.walk(ast.parse(text)))
    lines = sum(text.count("\n") for text in texts)
    assert nodes <= SIZES[parts][0]
    assert lines <= SIZES[parts][1]
