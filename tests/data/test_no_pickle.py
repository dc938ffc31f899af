"""Tests that nothing we read or write is a pickle, which could run code.

A user's own position encoding is code, and only one module runs it.
"""

import ast
import os
import subprocess
import sys
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


AUDIT = """
import os, sys
def hear(event, arguments):
    if event == "pickle.find_class":
        with open(os.environ["HEARD"], "a") as file:
            file.write(f"{sys.argv[:2]} {arguments}\\n")
    elif event == "import" and arguments[0] == "torch":
        with open(os.environ["HEARD"] + ".torch", "a") as file:
            file.write("torch\\n")
sys.addaudithook(hear)
"""


def test_no_pickle_is_loaded_in_a_whole_run(tiny_overrides: list[str], tmp_path: Path) -> None:
    """An audit hook records every unpickling, also in the process that trains."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(AUDIT)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)]),
        "HEARD": str(tmp_path / "heard"),
    }
    options = ["train.compile=false", "launch.device=cpu"]
    command = [sys.executable, "train.py", *tiny_overrides, *options]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "heard.torch").exists()
    assert not (tmp_path / "heard").exists()

    # Check that the hook works.
    code = "import pickle, fractions; pickle.loads(pickle.dumps(fractions.Fraction))"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert "Fraction" in (tmp_path / "heard").read_text()
