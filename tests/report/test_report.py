"""From run folders to the table: what stands in it, what is refused, and that the same runs give the same bytes."""

import csv
import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configs import REPOSITORY

from rope_exp.config.compose import run_config
from rope_exp.config.run import RunConfig
from rope_exp.evidence.published import LOSSES
from rope_exp.report.figures import look
from rope_exp.run.folder import write_config
from rope_exp.run.metrics import MetricsWriter
from rope_exp.system.files import write_json

BUDGET = (
    "train.num_steps=500",
    "train.global_batch_size=16",
    "train.seq_len=256",
    "train.eval_every=50",
)


@cache
def _config(overrides: tuple[str, ...]) -> RunConfig:
    return run_config([*BUDGET, *overrides])


def write_run(
    runs: Path,
    pe: str,
    seed: int = 0,
    loss: float | None = 3.5,
    *,
    group: str = "g",
    steps: int | None = None,
    overrides: Iterable[str] = (),
    result: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
) -> Path:
    """A run folder as the worker leaves it: finished at `loss`; or, without a loss, at `steps`, cut off or diverged.

    `result` replaces keys of result.json; without a loss, giving it (even {}) makes the run a diverged one.
    """
    config = _config(
        (pe if "=" in pe else f"pe={pe}", f"seed={seed}", f"run.group={group}", *overrides)
    )
    folder = runs / group / config.pe.label / f"seed{seed}"
    folder.mkdir(parents=True)
    write_config(folder, config)
    num_steps = config.train.num_steps
    last = num_steps if steps is None else steps
    noise = np.random.default_rng(seed)
    writer = MetricsWriter(folder, None)
    for step in range(10, last + 1, 10):
        shape = 4.0 * (np.exp(-step / 40) + np.exp(-5 * step / num_steps) / 2)
        value = (loss or 3.6) + float(shape - 2.0 * np.exp(-5.0))
        row = {
            "step": step,
            "tokens": step * 4096,
            "train/loss": value - 0.1 + 0.05 * float(noise.normal()),
        }
        if step % 50 == 0:
            row["val/loss"] = loss if step == num_steps and loss is not None else value
        writer.write({**row, "lr": 1e-3})
    writer.close()
    if env is not None:
        write_json(folder / "env.json", {"marks": [], "started": [], **env})
    if loss is None and result is None:
        return folder
    finished = loss is not None
    write_json(
        folder / "result.json",
        {
            "status": "finished" if finished else "diverged",
            "pe": config.pe.label,
            "rotate": list(config.pe.rotate),
            "seed": seed,
            "params": 1328256,
            "tokens": last * 4096,
            "steps": last,
            "val/loss": loss,
            "train/loss_last": writer.last.get("train/loss"),
            "init_sha256": _sha256(f"init {seed}"),
            "data_sha256": _sha256("data"),
            "order_sha256": _sha256(f"order {seed} {last}"),
            "config_sha256": config.config_sha256,
            "group_sha256": config.group_sha256,
            "tokens_per_s": 30000.0,
            "mfu": None,
            "wall_s": 80.0,
            **({} if finished else {"diverged_step": last + 1}),
            **(result or {}),
        },
    )
    return folder


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def nine(runs: Path, seeds: Iterable[int] = (0,), **more: Any) -> None:
    """The nine at losses in the published order, each seed a little apart."""
    for label, theirs in LOSSES.items():
        for seed in seeds:
            write_run(runs, label, seed, theirs + 1.0 + 0.001 * seed, **more)


class Reporter:
    """scripts/report.py in this process, on this test's own folders."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.runs, self.out = folder / "runs", folder / "out"
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, out: Path | None = None) -> int:
        command = ["report.py", "--runs", str(self.runs), "--out", str(out or self.out), *arguments]
        self._monkeypatch.setattr(sys, "argv", command)
        code = _script().main()
        captured = self._capsys.readouterr()
        self.said, self.complaint = captured.out, captured.err
        return int(code)

    def refuses(self, *said: str) -> None:
        """Exit code 2, one line that says all of `said`, and nothing written."""
        assert self() == 2
        assert self.complaint.startswith("error: ")
        assert self.complaint.count("\n") == 1
        for words in said:
            assert words in self.complaint
        assert not self.out.exists()

    def rows(self) -> dict[str, dict[str, str]]:
        """table.csv by label, in its order."""
        with (self.out / "table.csv").open(encoding="utf-8", newline="") as file:
            return {row["pe"]: row for row in csv.DictReader(file)}

    @property
    def markdown(self) -> str:
        return (self.out / "table.md").read_text(encoding="utf-8")


@cache
def _script() -> Any:
    spec = importlib.util.spec_from_file_location(
        "report_script", REPOSITORY / "scripts" / "report.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Reporter:
    return Reporter(tmp_path, monkeypatch, capsys)


def in_a_process(report: Reporter) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-W",
        "error",
        str(REPOSITORY / "scripts" / "report.py"),
        "--runs",
        str(report.runs),
    ]
    return subprocess.run(
        [*command, "--out", str(report.out)], capture_output=True, text=True, check=False
    )


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_command_writes_tables_and_figures_and_says_where(report: Reporter) -> None:
    nine(report.runs)
    done = in_a_process(report)
    assert (done.returncode, done.stderr) == (0, "")
    for name in (
        "table.md",
        "table.csv",
        "table.tex",
        "figures/loss_curves.png",
        "figures/against_published.png",
    ):
        assert str(report.out / name) in done.stdout
        assert (report.out / name).stat().st_size > 0
    assert "QKVO-RoPE" in done.stdout
    assert (
        "One seed: no difference here can be called real; best QK-RoPE (3.7120), worst V-RoPE (3.8560);"
        in done.stdout
    )
    assert "Kendall's tau-b against the published order is 1.000 (n = 9)" in done.stdout
    png = (report.out / "figures/loss_curves.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert b"Software" not in png


def test_table_csv_has_exactly_its_columns_and_numbers_by_hand(report: Reporter) -> None:
    ours = {
        "qk_rope": [3.5, 3.6, 3.7],
        "vo_rope": [3.61, 3.68, 3.75],
        "pe.rotate=[q,v]": [3.4, 3.9, 4.1],
    }
    for pe, losses in ours.items():
        for seed, loss in enumerate(losses):
            write_run(report.runs, pe, seed, loss)
    assert report() == 0
    header = (report.out / "table.csv").read_text().splitlines()[0]
    assert header == (
        "group,pe,rotate,num_seeds,loss_mean,loss_sd,delta,delta_ci_low,delta_ci_high,p_holm,verdict,"
        "published_loss,published_delta"
    )
    rows = report.rows()
    assert list(rows) == ["qk_rope", "vo_rope", "qv_rope"]  # best first
    for label, losses in zip(("qk_rope", "vo_rope", "qv_rope"), ours.values(), strict=True):
        row = rows[label]
        differences = np.array(losses) - np.array(ours["qk_rope"])
        assert (row["group"], row["num_seeds"], row["verdict"]) == ("g", "3", "")
        assert float(row["loss_mean"]) == pytest.approx(np.mean(losses), abs=5.1e-7)
        assert float(row["loss_sd"]) == pytest.approx(np.std(losses, ddof=1), abs=5.1e-7)
        assert float(row["delta"]) == pytest.approx(np.mean(differences), abs=5.1e-7)
    assert [row["rotate"] for row in rows.values()] == ["qk", "vo", "qv"]
    assert rows["vo_rope"]["delta"] == "+0.080000"
    assert (rows["vo_rope"]["published_loss"], rows["vo_rope"]["published_delta"]) == (
        "2.770000",
        "+0.058000",
    )
    assert (rows["qv_rope"]["published_loss"], rows["qv_rope"]["published_delta"]) == ("", "")


def test_several_seeds_claim_an_order_of_means_and_no_more(report: Reporter) -> None:
    nine(report.runs, seeds=(0, 1, 2))
    assert report() == 0
    assert (
        "3 seeds, significance not yet tested, so no difference here is called real; mean order QK-RoPE, "
        in report.said
    )
    assert "sd over seeds 0.0010" in report.said
    assert (
        "| QK-RoPE | q k | 3 | 3.7130 | 0.0010 | 0.0000 | 2.712 | 0.000 | 1 | 1 |"
        in report.markdown
    )
    assert (
        "| VO-RoPE | v o | 3 | 3.7710 | 0.0010 | +0.0580 | 2.770 | +0.058 | 4 | 4 |"
        in report.markdown
    )
    claims = [line for line in report.markdown.splitlines() if " > " in line]
    assert claims == ['Published order: QK ≈ QKVO > K ≈ VO > QKV > NoPE > Q/V/O (">" is better).\\']


def test_table_md_says_what_was_run_and_every_assumption(report: Reporter) -> None:
    nine(report.runs)
    assert report() == 0
    text = report.markdown
    assert (
        "Group g: 9 variants, seed 0; 1,328,256 parameters; corpus stdlib; 2,048,000 tokens a run"
        in text
    )
    assert "(500 steps × 16 sequences × 256 tokens)" in text
    for assumption in (
        "Corpus: stdlib", "Tokenizer: bpe_2k (bpe, vocabulary 2048)", "Learning rate: 0.003", "Schedule: cosine, 5%",
        "Length: 256", "Batch: 16 sequences", "O's direction: o turns back, by R^T at the query's position",
        "Pairing: half-split", "Initialisation: normal, deviation 0.02", "Precision: auto", "without attention masks",
        "mean nats per token on 128 fixed held-out windows", "https://spaces.ac.cn/archives/10862",
    ):  # fmt: skip
        assert assumption in text


def test_names_are_escaped_for_latex(report: Reporter) -> None:
    write_run(report.runs, "qk_rope")
    write_run(report.runs, "pe.name=my_own", 0, 3.6, overrides=["pe.base=500000"])
    assert report() == 0
    text = (report.out / "table.tex").read_text(encoding="utf-8")
    assert r"my\_own & q k & 1 & 3.6000 & --- & +0.1000 & --- & --- & 2 & --- \\" in text
    for line in (
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\begin{tabular}{llrrrrrrrr}",
        r"\end{tabular}",
    ):
        assert line in text


def test_a_variant_off_the_usual_keys_has_a_name_of_its_own_and_no_published_loss(
    report: Reporter,
) -> None:
    write_run(report.runs, "qk_rope")
    write_run(report.runs, "pe.base=500000", 0, 3.4)
    assert report() == 0
    assert report.rows()["qk_rope-base500000"]["published_loss"] == ""
    assert "| QK-RoPE base500000 | q k | 1 | 3.4000 |" in report.markdown
    assert "undefined (n = 1)" in report.said


def test_another_reference_moves_both_columns_of_differences(report: Reporter) -> None:
    nine(report.runs)
    assert report("--reference", "nope") == 0
    row = report.rows()["vo_rope"]
    assert (row["delta"], row["published_delta"]) == ("-0.025000", "-0.025000")
    assert "Δ to NoPE" in report.said


def test_a_reference_that_the_group_lacks_is_refused(report: Reporter) -> None:
    write_run(report.runs, "nope")
    assert report("--reference", "qk_rope") == 2
    assert "which has nope" in report.complaint
    assert not report.out.exists()
    assert report() == 0  # unasked for, its absence is said
    assert report.rows()["nope"]["delta"] == ""
    assert "qk_rope has no finished run here, so there is no Δ" in report.markdown


# -- unfinished and diverged -------------------------------------------------------------------------------------------


def test_a_diverged_or_unfinished_run_is_never_a_number(report: Reporter) -> None:
    write_run(report.runs, "qk_rope")
    write_run(report.runs, "vo_rope", loss=None, steps=130, result={})
    write_run(report.runs, "k_rope", loss=None, steps=250)
    write_run(report.runs, "nope", loss=None, steps=0)
    assert report() == 0
    for label, word in (("vo_rope", "diverged"), ("k_rope", "unfinished"), ("nope", "unfinished")):
        row = report.rows()[label]
        assert (row["verdict"], row["num_seeds"]) == (word, "0")
        assert not any(
            row[key]
            for key in ("loss_mean", "loss_sd", "delta", "delta_ci_low", "delta_ci_high", "p_holm")
        )
    assert "VO-RoPE, seed 0, diverged at step 131 of 500 (g/vo_rope/seed0)" in report.markdown
    assert "K-RoPE, seed 0, is unfinished: at step 250 of 500 (g/k_rope/seed0)" in report.markdown
    assert "NoPE, seed 0, is unfinished: at step 0 of 500" in report.markdown
    assert "Only QK-RoPE has finished (3.5000): there is nothing to compare." in report.said


def test_a_row_of_some_finished_seeds_is_of_these_alone(report: Reporter) -> None:
    for seed in range(3):
        write_run(report.runs, "qk_rope", seed, 3.5 + seed)
    write_run(report.runs, "vo_rope", 0, 3.6)
    write_run(report.runs, "vo_rope", 1, None, steps=130, result={})
    write_run(report.runs, "vo_rope", 2, 5.8)
    assert report() == 0
    row = report.rows()["vo_rope"]
    assert (row["num_seeds"], row["loss_mean"], row["delta"], row["verdict"]) == (
        "2",
        "4.700000",
        "+0.200000",
        "",
    )
    assert "VO-RoPE, seed 1, diverged at step 131 of 500" in report.markdown
    assert "VO-RoPE: mean over seeds 0, 2, Δ over the same." in report.markdown


def test_a_group_without_a_finished_run_says_so(report: Reporter) -> None:
    write_run(report.runs, "qk_rope", loss=None, steps=20)
    assert report() == 0
    assert "No run has finished: there is nothing to compare." in report.said


def test_what_the_record_says_of_interrupted_and_unequal_runs_is_noted(report: Reporter) -> None:
    write_run(
        report.runs,
        "qk_rope",
        env={"device": "A100", "marks": ["went on with world_size 2 after 1"]},
    )
    write_run(report.runs, "vo_rope", env={"device": "H200", "marks": []})
    (report.runs / "g/vo_rope/notes").mkdir()
    (report.runs / "g/scraps").mkdir()
    (report.runs / "g/.hidden").mkdir()
    (report.runs / "g/vo_rope/.seed0.old-1").mkdir()
    assert report() == 0
    for note in (
        "QK-RoPE, seed 0: went on with world_size 2 after 1 (g/qk_rope/seed0).",
        "Runs differ in device: A100 (1 run), H200 (1 run).",
        "g/vo_rope/notes holds no run",
        "g/scraps holds no run",
    ):
        assert note in report.markdown
    assert "old-1" not in report.markdown
    assert "hidden" not in report.markdown


def test_learned_frequencies_may_add_parameters_and_change_the_hash_of_weights(
    report: Reporter,
) -> None:
    write_run(report.runs, "qk_rope")
    write_run(
        report.runs,
        "pe.trainable=true",
        0,
        3.4,
        result={"params": 1328288, "init_sha256": _sha256("other")},
    )
    assert report() == 0
    assert "QK-RoPE trainable learns its frequencies" in report.markdown
    assert "1,328,256 to 1,328,288 parameters" in report.markdown


# -- the same bytes ----------------------------------------------------------------------------------------------------


def test_the_same_runs_give_the_same_bytes_in_whatever_order_they_were_made(
    report: Reporter, tmp_path: Path
) -> None:
    made = [(label, seed) for label in LOSSES for seed in (0, 1)]
    written = []
    for number, order in enumerate((made, made[::-1])):
        report.runs = tmp_path / f"runs{number}" / "at" / "some" / "place"
        for label, seed in order:
            write_run(report.runs, label, seed, LOSSES[label] + 0.01 * seed)
        out = tmp_path / f"out{number}"
        for _ in range(2):
            assert report(out=out) == 0
            written.append(
                {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
            )
    assert len(written[0]) == 5
    assert all(files == written[0] for files in written)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("init_sha256", "began at different weights"),
        ("data_sha256", "read different corpora"),
        ("order_sha256", "saw different tokens"),
        ("params", "differ in parameters"),
    ],
)
def test_rows_of_one_seed_that_were_not_made_alike_are_refused(
    report: Reporter, key: str, what: str
) -> None:
    qk = write_run(report.runs, "qk_rope")
    vo = write_run(report.runs, "vo_rope", result={key: 7 if key == "params" else _sha256("other")})
    report.refuses(what, str(qk), str(vo), key)


def test_a_refusal_in_a_process_of_its_own_exits_2(report: Reporter) -> None:
    write_run(report.runs, "qk_rope")
    write_run(report.runs, "vo_rope", result={"init_sha256": _sha256("other")})
    done = in_a_process(report)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert not report.out.exists()


def test_corpora_must_agree_over_seeds_too_but_weights_and_order_need_not(report: Reporter) -> None:
    write_run(report.runs, "qk_rope", 0)
    write_run(report.runs, "qk_rope", 1)
    assert report() == 0
    shutil.rmtree(report.out)
    write_run(report.runs, "qk_rope", 2, result={"data_sha256": _sha256("other")})
    report.refuses("read different corpora")


def test_a_diverged_run_has_seen_fewer_tokens_and_is_no_reason_to_refuse(report: Reporter) -> None:
    write_run(report.runs, "qk_rope")
    write_run(
        report.runs, "vo_rope", loss=None, steps=100, result={"order_sha256": _sha256("100 steps")}
    )
    assert report() == 0


def test_rows_of_different_groups_in_one_folder_are_refused_by_key(report: Reporter) -> None:
    qk = write_run(report.runs, "qk_rope", overrides=["optim.lr=0.002"])
    vo = write_run(report.runs, "vo_rope")
    report.refuses(str(qk), str(vo), "optim.lr: 0.002 -> 0.003")


def test_keys_that_change_no_number_may_differ_within_a_group(report: Reporter) -> None:
    write_run(report.runs, "qk_rope")
    write_run(report.runs, "vo_rope", overrides=["train.eval_every=25", "tracker.mode=offline"])
    assert report() == 0


def test_two_variants_under_one_name_are_refused(report: Reporter) -> None:
    write_run(report.runs, "pe.name=mine", 0)
    write_run(report.runs, "pe.name=mine", 1, overrides=["pe.base=500000"])
    report.refuses("two variants under one name", "pe.base: 10000.0 -> 500000.0")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pe", "vo_rope"), ("rotate", ["v", "o"]), ("seed", 1), ("config_sha256", "0" * 64), ("group_sha256", "0" * 64),
        ("status", "done"), ("val/loss", None), ("val/loss", "3.5"), ("val/loss", True), ("params", "many"),
        ("init_sha256", None), ("order_sha256", None), ("data_sha256", 3),
    ],
)  # fmt: skip
def test_a_result_that_is_edited_or_foreign_is_refused(
    report: Reporter, key: str, value: object
) -> None:
    folder = write_run(report.runs, "qk_rope", result={key: value})
    report.refuses(str(folder / "result.json"), key)


def test_a_config_edited_after_the_run_is_refused(report: Reporter) -> None:
    folder = write_run(report.runs, "qk_rope")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.003", "lr: 0.004"))
    report.refuses(str(folder), "group_sha256")


def test_not_a_number_is_no_loss(report: Reporter) -> None:
    folder = write_run(report.runs, "qk_rope")
    path = folder / "result.json"
    path.write_text(path.read_text().replace('"val/loss": 3.5', '"val/loss": NaN'))
    report.refuses("result.json", "NaN is no JSON")


def test_a_diverged_result_with_a_loss_or_without_its_step_is_refused(report: Reporter) -> None:
    folder = write_run(report.runs, "qk_rope", loss=None, steps=100, result={"val/loss": 3.0})
    report.refuses(str(folder), "val/loss")
    shutil.rmtree(folder)
    write_run(report.runs, "qk_rope", loss=None, steps=100, result={"diverged_step": None})
    report.refuses("diverged_step")


def test_a_copied_folder_is_refused_as_a_duplicate(report: Reporter) -> None:
    folder = write_run(report.runs, "qk_rope")
    shutil.copytree(folder, report.runs / "g/qk_rope/seed1")
    report.refuses("are both qk_rope-s0", str(folder), str(report.runs / "g/qk_rope/seed1"))


def test_a_run_in_a_folder_named_after_another_is_refused(report: Reporter) -> None:
    folder = write_run(report.runs, "qk_rope")
    folder.rename(folder.with_name("seed1"))
    report.refuses(str(folder.with_name("seed1")), "belongs in qk_rope/seed0")
    (report.runs / "g/qk_rope/seed1").rename(report.runs / "g/qk_rope/seed0")
    (report.runs / "g/qk_rope").rename(report.runs / "g/vo_rope")
    report.refuses(str(report.runs / "g/vo_rope/seed0"), "belongs in qk_rope/seed0")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "{"), ("config.yaml", "seed: 0\n"), ("result.json", "{"), ("result.json", "[]"),
        ("metrics.jsonl", "x\n"), ("metrics.jsonl", '{"step": 1, "train/loss": "low"}\n'), ("env.json", "null"),
        ("env.json", '{"marks": "late"}'),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(report: Reporter, name: str, text: str) -> None:
    folder = write_run(report.runs, "qk_rope")
    (folder / name).write_text(text)
    report.refuses(str(folder / name))


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "metrics.jsonl", "env.json"])
def test_a_folder_where_a_file_belongs_is_named(report: Reporter, name: str) -> None:
    folder = write_run(report.runs, "qk_rope")
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    report.refuses(str(folder / name))


@pytest.mark.parametrize("harm", ["edited", "cut", "emptied", "removed", "longer"])
def test_a_curve_that_does_not_end_where_the_result_says_is_refused(
    report: Reporter, harm: str
) -> None:
    folder = write_run(report.runs, "qk_rope")
    path = folder / "metrics.jsonl"
    text = path.read_text()
    if harm == "edited":
        path.write_text(text.replace('"val/loss": 3.5,', '"val/loss": 3.25,'))
    elif harm == "cut":
        path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    elif harm == "emptied":
        path.write_text("")
    elif harm == "removed":
        path.unlink()
    else:
        path.write_text(
            text + '{"step": 510, "tokens": 2088960, "train/loss": 3.0, "val/loss": 3.5}\n'
        )
    report.refuses(str(path))


def test_a_curve_edited_in_its_middle_is_refused_where_a_checkpoint_knows_it(
    report: Reporter,
) -> None:
    folder = write_run(report.runs, "qk_rope")
    path, state = folder / "metrics.jsonl", folder / "checkpoints/step_00000500/state.json"
    held = path.read_bytes()
    state.parent.mkdir(parents=True)
    write_json(state, {"metrics": {"bytes": len(held), "sha256": hashlib.sha256(held).hexdigest()}})
    assert report() == 0
    shutil.rmtree(report.out)
    rows = held.decode().splitlines(keepends=True)
    path.write_text("".join([*rows[:9], *rows[10:]]))
    report.refuses(str(path), "step_00000500")


def test_a_folder_that_lost_its_config_is_refused_and_not_left_out(report: Reporter) -> None:
    write_run(report.runs, "qk_rope")
    folder = write_run(report.runs, "vo_rope")
    (folder / "config.yaml").unlink()
    report.refuses(str(folder / "config.yaml"))


def test_several_groups_are_not_mixed_but_asked_about(report: Reporter) -> None:
    write_run(report.runs, "qk_rope", group="small")
    write_run(report.runs, "qk_rope", group="large")
    (report.runs / "empty").mkdir()
    report.refuses("several groups", "large, small")
    assert report("--group", "small") == 0
    assert report.rows()["qk_rope"]["group"] == "small"


def test_no_runs_are_refused_with_the_way_to_make_them(report: Reporter) -> None:
    report.refuses("holds no runs", "python train.py -m 'pe=glob(*)'")
    write_run(report.runs, "qk_rope")
    assert report("--group", "other") == 2
    assert "holds no group other; there is g" in report.complaint


def test_a_folder_that_cannot_be_written_is_a_failure_and_no_traceback(report: Reporter) -> None:
    write_run(report.runs, "qk_rope")
    report.out.write_text("a file stands here")
    assert report() == 1
    assert report.complaint.startswith("error: ")


# -- figures -----------------------------------------------------------------------------------------------------------


def test_all_sixteen_subsets_look_different_and_always_the_same() -> None:
    labels = [
        f"{''.join(sites)}_rope" for size in range(1, 5) for sites in combinations("qkvo", size)
    ]
    looks = [look(label) for label in ["nope", *labels]]
    assert len(set(looks)) == 16
    assert len({look(label).color for label in LOSSES}) == 9
    assert look("qk_rope-base500000") == look("qk_rope-base500000") != look("qk_rope")


def test_figures_are_drawn_of_sixteen_variants_and_runs_that_blew_up(report: Reporter) -> None:
    for size in range(5):
        for sites in combinations("qkvo", size):
            for seed in range(2):
                blown = sites == ("o",) and seed == 1
                loss, steps = (None, 100) if blown else (3.5 + 0.01 * size, None)
                last = (
                    {"steps": 105, "train/loss_last": 1e30, "diverged_step": 106} if blown else {}
                )
                write_run(
                    report.runs,
                    f"pe.rotate=[{','.join(sites)}]",
                    seed,
                    loss,
                    steps=steps,
                    result=last,
                )
    path = report.runs / "g/o_rope/seed1/metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 105, "train/loss": 1e30, "val/loss": 1e30}\n')
    assert report() == 0
    assert (report.out / "figures/loss_curves.png").stat().st_size > 50_000
