"""Fuzz tests: any content of a run's files is read, or refused in one sentence by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import seal
from support.configs import TINY
from support.runs import train

from rope_exp import load_run
from rope_exp.config.run import RunConfig
from rope_exp.data.prepare import prepare
from rope_exp.evidence.runs import read_runs
from rope_exp.plan.resolve import resolve
from rope_exp.report.content import build
from rope_exp.run import checkpoint
from rope_exp.run.folder import read_env, read_result
from rope_exp.system.errors import CheckpointError, ConfigError, DataError, RecordError
from rope_exp.system.files import read_json
from rope_exp.training.parallel import Parallel
from rope_exp.training.trainer import Trainer

FEW, MANY = 60, 3000
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just(10**400)
    | st.just("0" * 64),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def mutations(values: dict[str, Any]) -> st.SearchStrategy[str]:
    """Return JSON texts with some keys dropped, added or replaced, and characters inserted."""
    keys = st.sampled_from(sorted(values)) | st.text(max_size=4)

    @st.composite
    def mutation(draw: st.DrawFn) -> str:
        replaced = draw(st.dictionaries(keys, JSON, max_size=3))
        lost = draw(st.sets(keys, max_size=1))
        kept = {key: value for key, value in (values | replaced).items() if key not in lost}
        text = json.dumps(kept) + "\n"
        place = draw(st.integers(0, len(text) - 1))
        return text[:place] + draw(st.text(max_size=3)) + text[place:]

    return mutation()


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> tuple[Path, list[str]]:
    """Return the folder of a small finished run in a group of its own, and its command line."""
    folder = tmp_path_factory.mktemp("finished")
    command = [
        *TINY,
        f"data.path={corpus}",
        "data.holdout_fraction=0.2",
        f"data.cache_dir={cache}",
        "run.group=g",
    ]
    done = train(*command, "pe=qk_rope", "launch.device=cpu", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "results/runs/g/qk_rope/seed0", command


def fuzzed(
    num_examples: int, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]
) -> None:
    """Run `check` on `num_examples` examples, the same ones in every session."""
    settings(
        max_examples=num_examples,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )(given(strategy)(check))()


SIZES = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.torture)]


@pytest.mark.parametrize("num_examples", SIZES)
@pytest.mark.parametrize("name", ["result.json", "env.json"])
def test_any_result_and_environment_is_read_or_refused_by_name(
    finished: tuple[Path, list[str]], tmp_path: Path, num_examples: int, name: str
) -> None:
    read = {"result.json": read_result, "env.json": read_env}[name]

    def check(text: str) -> None:
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            values = read(tmp_path)
        except RecordError as error:
            assert str(tmp_path / name) in str(error)
            assert "\n" not in str(error)
        else:
            assert isinstance(values, dict)

    fuzzed(num_examples, mutations(read_json(finished[0] / name)), check)


@pytest.mark.parametrize("num_examples", SIZES)
def test_a_run_goes_on_from_any_state_or_refuses_it_by_name(
    finished: tuple[Path, list[str]],
    tmp_path: Path,
    num_examples: int,
    tiny: Callable[..., RunConfig],
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    (folder / "result.json").unlink()
    config = resolve(tiny("launch.device=cpu").replace("run", dir=str(folder)))
    prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
    saved = checkpoint.load(folder / "checkpoints", 6)
    stop: Any = SimpleNamespace(requested=False)

    def check(text: str) -> None:
        path = checkpoint.step_folder(folder / "checkpoints", 6) / "state.json"
        checkpoint.save(folder / "checkpoints", 6, saved.model, saved.optimizer, saved.state)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        seal(path.parent)
        try:
            Trainer(config, folder, prepared, Parallel("cpu", "fp32", 1), stop)
        except (CheckpointError, RecordError) as error:
            assert "step" in str(error)
            assert "\n" not in str(error)

    fuzzed(num_examples, mutations({"step": 6, **saved.state}), check)


@pytest.mark.parametrize("num_examples", SIZES)
def test_a_harmed_run_folder_is_read_or_refused(
    finished: tuple[Path, list[str]], tmp_path: Path, num_examples: int
) -> None:
    runs = tmp_path / "g"
    folder = runs / "qk_rope" / "seed0"
    shutil.copytree(finished[0], folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")

    def report() -> None:
        build(read_runs([runs])[0], ("pe",))

    def check(harm: tuple[Path, int, int, bytes]) -> None:
        path, place, length, inserted = harm
        content = path.read_bytes()
        place %= len(content)
        path.write_bytes(content[:place] + inserted + content[place + length :])
        try:
            for read in (lambda: load_run(folder), report):
                try:
                    read()
                except (RecordError, CheckpointError, DataError, ConfigError) as error:
                    assert "\n" not in str(error)
        finally:
            path.write_bytes(content)

    strategy = st.tuples(
        st.sampled_from(files), st.integers(0, 10**6), st.integers(0, 30), st.binary(max_size=8)
    )
    fuzzed(num_examples, strategy, check)
