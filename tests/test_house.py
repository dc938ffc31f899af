"""The house keeps its order: imports go one way, the light modules stay light, a variant is data."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

PACKAGE = REPOSITORY / "rope_exp"

# Each module may import those of lower rank; equals do not import each other.
RANKS = [
    {"schema", "progress", "stop", "published", "disk"},
    {"config"},
    {"compose", "flops", "record", "rope"},
    {"machine", "attention", "loss"},
    {"model", "optim", "live", "leases", "track", "checkpoint", "data", "stats", "throughput"},
    {"certify", "load", "report"},
    {"loop", "figures", "tables"},
    {"worker"},
    {"launch"},
]
LIGHT = ("schema", "config", "compose", "flops", "machine", "record", "live", "track", "data", "launch", "report")


def imported(path: Path) -> set[str]:
    """The rope_exp modules that a file imports at any depth, type-checking imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rope_exp":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("rope_exp.")}
    return found


def test_imports_go_one_way() -> None:
    rank = {name: number for number, names in enumerate(RANKS) for name in names}
    modules = {path.stem: [path] for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    modules["data"] = list((PACKAGE / "data").glob("*.py"))
    assert set(modules) == set(rank)
    for name, paths in modules.items():
        for other in set().union(*map(imported, paths)) - {name}:
            # The dispatcher runs the worker in this very process for launch=inline, and only then.
            assert rank[other] < rank[name], f"{name} imports {other}"


@pytest.mark.parametrize("name", LIGHT)
def test_what_the_dispatcher_imports_loads_no_torch(name: str) -> None:
    script = f"import sys, rope_exp.{name}; print({{'torch', 'datasets', 'transformers', 'wandb'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_no_module_knows_a_variant_by_name() -> None:
    names = ("vo_rope", "qk_rope", "qkvo_rope", "VO-RoPE", "QK-RoPE")
    for path in [*PACKAGE.rglob("*.py"), REPOSITORY / "train.py"]:
        if path.stem in ("published", "report", "tables", "figures", "stats"):  # the published table and its reference
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                assert not any(name in ast.unparse(node) for name in names), path


def test_the_makefile_has_at_most_14_targets_and_each_says_what_it_is_for() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
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
