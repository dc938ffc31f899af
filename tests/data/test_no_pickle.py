"""Test that nothing we read or write is a pickle, and that only one module runs foreign code."""

import ast
import re

from support.configs import REPOSITORY

# The module that runs the file named by pe.code.
OWN = REPOSITORY / "rope_exp/custom_code.py"
FORBIDDEN = re.compile(
    r"^\s*(import|from) (c?[Pp]ickle|marshal|shelve|dill|cloudpickle|joblib)\b"
    r"|\btorch\.(load|save)\(|(read|to)_pickle\(|(?<![\w.])(eval|exec)\(",
    re.MULTILINE,
)


def test_no_module_of_ours_reads_or_writes_pickles() -> None:
    """A pickle could run code, and so could text that is evaluated."""
    paths = [*REPOSITORY.glob("*.py"), *REPOSITORY.glob("scripts/**/*.py")]
    paths += set(REPOSITORY.glob("rope_exp/**/*.py")) - {OWN}
    assert len(paths) > 30
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not FORBIDDEN.search(text), path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
                assert ast.unparse(node.value) == "False", path
