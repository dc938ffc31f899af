"""What a config costs is said before it runs."""

import re
import subprocess
import sys

from support.configs import REPOSITORY


def plan(*overrides: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(REPOSITORY / "scripts" / "plan.py"), *overrides]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_parameters_operations_memory_and_time_are_printed() -> None:
    done = plan("model=sequel", "data=c4")
    assert done.returncode == 0, done.stderr
    assert "931,317,760 parameters" in done.stdout
    # 6 operations a weight and token over all but the embedding, and 6 L (T + 1) D in causal attention.
    weights = 931_317_760 - 80_000 * 2048 - 25 * 2048
    per_token = 6 * weights + 6 * 12 * 4097 * 2048
    assert f"{per_token:.3e} a token" in done.stdout
    assert re.search(r"about [\d.]+ GiB a process", done.stdout)
    assert (
        len(re.findall(r"^time +[\d,.]+ (days|hours|minutes|seconds)", done.stdout, re.MULTILINE))
        >= 3
    )


def test_a_mistake_is_one_sentence() -> None:
    done = plan("model=nosuch")
    assert done.returncode == 2
    assert done.stderr.startswith("error: model=nosuch: there is no such choice")
    assert done.stderr.count("\n") == 1
