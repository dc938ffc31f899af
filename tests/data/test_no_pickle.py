"""Tests that nothing we read or write is a pickle, which could run code.

A user's own position encoding is code, and only one module runs it.
"""

import ast
from pathlib import Path

from support.configs import REPOSITORY

# The module that runs the file named by pe.code.
OWN = REPOSITORY / "rope_exp" / "model" / "own.py"
FORBIDDEN = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def test_no_module_of_ours_reads_or_writes_pickles() -> None:
    paths = [*REPOSITORY.glob("*.py"), *REPOSITORY.glob("scripts/**/*.py")]
    paths += REPOSITORY.glob("rope_exp/**/*.py")
    assert len(paths) > 30
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in FORBIDDEN, path
            elif isinstance(node, ast.Call):
                check_call(node, path)


def check_call(node: ast.Call, path: Path) -> None:
    """Assert that a call neither unpickles nor runs text, nor allows it."""
    name = ast.unparse(node.func)
    if path == OWN and name == "exec":
        return
    assert name not in ("torch.load", "torch.save", "eval", "exec"), path
    assert not name.endswith(("read_pickle", "to_pickle")), path
    for word in node.keywords:
        if word.arg in ("allow_pickle", "trust_remote_code"):
            assert ast.unparse(word.value) == "False", path
