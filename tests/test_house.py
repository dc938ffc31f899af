"""The house keeps its order: imports go one way, the light modules stay light, a variant is data."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.configs import NINE, REPOSITORY

PACKAGE = REPOSITORY / "rope_exp"

# The floor of each room. An import goes to a lower floor, or stays in its own package.
FLOORS = {
    "system": 1,
    "config": 2,
    "run": 3,
    "model": 3,
    "data": 3,
    "evaluation": 5,
    "evidence": 5,
    "training": 6,
    "report": 6,
    "launch": 7,
}
LIGHT = (
    "config.compose",
    "config.costs",
    "config.resolve",
    "run.folder",
    "run.tracker",
    "data.prepare",
    "launch.sweep",
    "launch.view",
    "report.command",
)


def imported(path: Path) -> set[str]:
    """The rope_exp packages that a file imports at any depth, type-checking imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rope_exp":
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = str(name).split(".")
            if parts[0] == "rope_exp" and len(parts) > 1:
                found.add(parts[1])
    return found & FLOORS.keys()


def test_imports_go_down() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(FLOORS)
    for path in PACKAGE.glob("*/**/*.py"):
        own = path.relative_to(PACKAGE).parts[0]
        for other in imported(path) - {own}:
            assert FLOORS[other] < FLOORS[own], f"{path} imports {other}"


@pytest.mark.parametrize("name", LIGHT)
def test_what_the_dispatcher_imports_loads_no_torch(name: str) -> None:
    script = f"import sys, rope_exp.{name}; print({{'torch', 'datasets', 'transformers', 'wandb'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()", done.stderr


def test_few_modules_know_a_variant_by_name() -> None:
    """The default, the published table and the colours of the nine; the rest takes any variant."""
    names = {*NINE, *(label.upper().replace("_ROPE", "-RoPE") for label in NINE)}
    knowing = set()
    for path in [*PACKAGE.rglob("*.py"), REPOSITORY / "train.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in names:
                knowing.add(str(path.relative_to(REPOSITORY)))
    assert knowing == {
        "rope_exp/config/variants.py",
        "rope_exp/evidence/published.py",
        "rope_exp/report/looks.py",
    }


def test_the_makefile_has_at_most_14_targets_and_each_says_what_it_is_for() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    targets = done.stdout.splitlines()
    assert 6 <= len(targets) <= 14
    assert all(len(line.split(maxsplit=1)) == 2 for line in targets)


def test_the_readme_shows_the_table_that_is_committed() -> None:
    table = (REPOSITORY / "results" / "table.md").read_text(encoding="utf-8").splitlines()
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in table if line.startswith("|")]
    assert len(rows) == 11
    assert [line for line in readme if line in rows] == rows
    assert next(line for line in table if line.startswith("One seed")) in readme


def test_the_repository_holds_no_word_of_where_it_was_made() -> None:
    words = ("/wo" + "rk/", "/ro" + "ot/", "/tm" + "p/")
    kept = [*REPOSITORY.glob("*.md"), REPOSITORY / "Makefile"]
    for folder in ("rope_exp", "tests", "scripts", "docs", "configs"):
        for suffix in (".py", ".md", ".yaml", ".c", ".json"):
            kept += (REPOSITORY / folder).rglob(f"*{suffix}")
    for path in kept:
        assert not any(word in path.read_text(encoding="utf-8") for word in words), path
