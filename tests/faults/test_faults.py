"""Faults, injected for real: files that break, full disks, signals, processes that die, gradients that blow up.

docs/reliability.md lists what each promises; `make torture` runs the long ones.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from support.configs import REPOSITORY
from support.runs import assert_same_run, num_rows, numbers, processes_of, start, train, wait_for

from rope_exp.run.metrics import read_metrics
from rope_exp.system.files import read_json

Whole = tuple[Path, list[str]]
INSIDE = str(Path(__file__).parent / "inside")  # a sitecustomize.py that breaks a rank from within


# -- a save ------------------------------------------------------------------------------------------------------------


def test_a_save_broken_at_any_file_operation_leaves_the_old_or_the_new_checkpoint_and_the_run_goes_on(
    broken_files: Path,
) -> None:
    environment = os.environ | {
        "LD_PRELOAD": str(broken_files),
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).parent / "save.py"), str(broken_files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    by_how = Counter(trial["how"] for trial in trials)
    assert set(by_how) == {"killed before", "killed after", "disk full", "input/output error"}
    assert (
        min(by_how.values()) == max(by_how.values()) > 20
    )  # every write, fsync, rename and deletion of the save
    for trial in trials:
        # What is listed verifies: nothing half stands under a checkpoint's name, neither made nor deleted by halves.
        assert trial["verified"] == trial["listed"], trial
        assert trial["listed"] in ([1, 2], [1, 2, 3], [2, 3]), trial
        assert trial["loaded"] == max(trial["listed"]), trial
        assert trial["after"] == [f"step_{trial['loaded']:08d}", "step_00000004"], trial
        if trial["how"] in ("disk full", "input/output error") and trial["status"] != 0:
            assert not any(name.startswith(".saving-") for name in trial["left"]), trial
        assert (trial["status"] == -signal.SIGKILL) == trial["how"].startswith("killed"), trial
        if trial["how"] == "disk full" and trial["status"] != 0:
            assert trial["said"].startswith("no space left in "), trial
    outcomes = {(trial["how"], trial["loaded"]) for trial in trials}
    assert {
        ("killed before", 2),
        ("killed before", 3),
        ("disk full", 2),
        ("input/output error", 2),
    } <= outcomes


@pytest.mark.parametrize(
    ("at", "how"),
    [(3, 1), (9, 2), (40, 1), (90, 2)]
    + [
        pytest.param(at, how, marks=pytest.mark.torture)
        for at in range(1, 120, 6)
        for how in (1, 2)
    ],
)
def test_killed_at_a_file_operation_of_the_run_folder_it_goes_on_as_the_same_run(
    whole: Whole, tmp_path: Path, broken_files: Path, at: int, how: int
) -> None:
    folder, command = whole
    again = [*command, f"run.dir={tmp_path / 'run'}"]
    broken = {
        "LD_PRELOAD": str(broken_files),
        "FAULT_FOLDER": str(tmp_path / "run"),
        "FAULT_AT": str(at),
    }
    done = train(*again, cwd=tmp_path, **broken, FAULT_HOW=str(how))
    assert done.returncode in (1, -signal.SIGKILL), done.stderr
    assert not (tmp_path / "run" / "result.json").exists()
    assert train(*again, cwd=tmp_path).returncode == 0
    assert_same_run(folder, tmp_path / "run")
    left = {path.name for path in (tmp_path / "run").rglob(".*")}
    assert left <= {".lock"}, left


# -- a full disk -------------------------------------------------------------------------------------------------------


def on_small_disk(mount: Path, kilobytes: int, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell script where `mount` is a file system of its own, in memory and this large."""
    mount.mkdir(exist_ok=True)
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*space, "true"], capture_output=True).returncode
    ):
        pytest.skip(
            "mounting a small file system takes Linux's user namespaces, which are not allowed here"
        )
    prepared = (
        f"set -e; mount -t tmpfs -o size={kilobytes}k tmpfs {mount}; cd {mount}; set +e; {script}"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*space, "sh", "-c", prepared], env=environment, capture_output=True, text=True, timeout=240
    )


def test_a_disk_that_fills_up_costs_no_checkpoint_and_no_half_row_and_the_run_goes_on_with_room(
    whole: Whole, tmp_path: Path
) -> None:
    folder, command = whole
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    run = " ".join([sys.executable, str(REPOSITORY / "train.py"), *command, f"run.dir={disk}/run"])
    # A checkpoint takes about 450 kB, and room is asked for three with some to spare. Once the first stands, another
    # program eats what is left.
    script = f"""
        {run} 2> {tmp_path}/err & run=$!
        while kill -0 $run && ! [ -d run/checkpoints/step_00000010 ]; do sleep 0.01; done
        cat /dev/zero > eater 2> /dev/null
        wait $run; echo "exit $?"; cat {tmp_path}/err; ls -A run run/checkpoints; cp -r run {kept}
        rm eater; {run} > /dev/null 2>&1; echo "then $?"; cp -r run {tmp_path}/run
    """
    done = on_small_disk(disk, 5000, script)
    assert "exit 1" in done.stdout, done.stdout + done.stderr
    assert re.search(
        r"error: no space left in .*: .* needs [\d,]+ bytes and [\d,]+ are free", done.stdout
    ), done.stdout
    assert "Traceback" not in done.stdout
    assert ".saving" not in done.stdout
    assert ".new" not in done.stdout
    steps = sorted((kept / "checkpoints").iterdir())
    assert steps
    assert {path.name for path in steps[0].iterdir()} >= {"model.safetensors", "manifest.json"}
    content = (kept / "metrics.jsonl").read_bytes()
    assert content.endswith(b"\n")
    rows = [json.loads(line) for line in content.splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert "then 0" in done.stdout
    assert_same_run(folder, tmp_path / "run")


def test_a_start_with_room_for_less_than_two_checkpoints_is_refused_naming_folder_and_bytes(
    whole: Whole, tmp_path: Path
) -> None:
    _, command = whole
    disk = tmp_path / "disk"
    run = " ".join([sys.executable, str(REPOSITORY / "train.py"), *command, f"run.dir={disk}/run"])
    done = on_small_disk(disk, 800, f"{run} train.keep_checkpoints=1; echo exit $?; ls -A")
    assert done.stdout.splitlines() == ["exit 1"]
    assert re.fullmatch(
        rf"error: no space left in {disk}/run: .* needs [\d,]+ bytes and [\d,]+ are free.*\n",
        done.stderr,
    )


# -- signals -----------------------------------------------------------------------------------------------------------

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("start", signal.SIGUSR1),
        ("compile", signal.SIGTERM),
        ("step", signal.SIGINT),
        ("save", signal.SIGTERM),
    ]
    + [
        pytest.param(*case, marks=pytest.mark.torture)
        for case in product(("start", "step", "save"), SIGNALS)
    ],
)
def test_asked_to_stop_at_any_moment_it_exits_75_and_goes_on_bit_for_bit(
    whole: Whole, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    folder, command = whole
    run = tmp_path / "run"
    again = [
        *command,
        f"run.dir={run}",
        "train.save_every=3",
        *(["train.compile=true"] if moment == "compile" else []),
    ]
    process = start(*again, cwd=tmp_path)
    if moment == "start":
        wait_for((run / "config.yaml").exists, process)
        time.sleep(1.0)
    elif moment == "compile":
        wait_for((run / "metrics.jsonl").exists, process)
    elif moment == "step":
        wait_for(lambda: num_rows(run) >= 13, process)
    else:
        wait_for(lambda: list((run / "checkpoints").glob(".saving-*")), process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    assert not (run / "result.json").exists()
    if moment == "compile":
        assert num_rows(run) <= 1
        return  # compiled, it is another run
    assert not list((run / "checkpoints").glob(".saving-*"))
    saved = sorted(path.name for path in (run / "checkpoints").glob("step_*"))
    assert saved or moment == "start"
    assert not saved or int(saved[-1].removeprefix("step_")) == num_rows(run)
    assert train(*again, cwd=tmp_path).returncode == 0
    assert_same_run(folder, run)


def test_a_second_signal_leaves_at_once_and_the_run_goes_on_from_its_last_checkpoint(
    whole: Whole, tmp_path: Path
) -> None:
    folder, command = whole
    run = tmp_path / "run"
    environment = {"PYTHONPATH": INSIDE, "SABOTAGE": "vo_rope:0:25:hang"}
    process = start(*command, f"run.dir={run}", cwd=tmp_path, **environment)
    wait_for(lambda: num_rows(run) >= 24, process)
    process.send_signal(signal.SIGTERM)
    time.sleep(2.5)
    assert process.poll() is None  # it waits for a step that hangs
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in stderr) == (75, False)
    assert time.monotonic() - asked < 5
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step_00000010",
        "step_00000020",
    ]
    assert train(*command, f"run.dir={run}", cwd=tmp_path).returncode == 0
    assert_same_run(folder, run)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_process_of_two_that_is_asked_makes_both_save_the_same_step(
    whole: Whole, tmp_path: Path, rank: int
) -> None:
    _, command = whole
    run = tmp_path / "run"
    command = [
        *command,
        "train.num_steps=150",
        "train.micro_batch_size=1",
        "launch.num_processes=2",
    ]
    assert train(*command, f"run.dir={tmp_path / 'undisturbed'}", cwd=tmp_path).returncode == 0
    process = start(*command, f"run.dir={run}", cwd=tmp_path)
    wait_for(lambda: num_rows(run) >= 5, process)
    ranks = sorted(processes_of(run).items())
    workers = [pid for pid, words in ranks if "rope_exp.training.worker" in words]
    assert len(workers) == 2
    os.kill(workers[rank], signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    [saved] = [
        int(path.name.removeprefix("step_")) for path in sorted((run / "checkpoints").iterdir())
    ][-1:]
    assert saved == num_rows(run) < 150
    assert train(*command, f"run.dir={run}", cwd=tmp_path).returncode == 0
    assert_same_run(tmp_path / "undisturbed", run)


def test_a_sweep_that_is_asked_to_stop_ends_every_run_and_a_rerun_finishes_them(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    command = [
        *(word for word in tiny_overrides if "run.dir" not in word),
        "run.group=some",
        "pe=nope,vo_rope,qk_rope",
    ]
    command += ["train.num_steps=300", "train.save_every=50", "launch.max_parallel=2", "-m"]
    process = start(*command, cwd=tmp_path)
    runs = tmp_path / "results/runs/some"
    wait_for(
        lambda: sum(num_rows(path.parent) > 5 for path in runs.glob("*/seed0/metrics.jsonl")) == 2,
        process,
    )
    process.send_signal(signal.SIGUSR1)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    assert not processes_of(runs)
    assert train(*command, cwd=tmp_path).returncode == 0
    assert len(list(runs.glob("*/seed0/result.json"))) == 3


@pytest.mark.parametrize("broken", ["closed", "full"])
def test_where_nobody_hears_it_a_run_trains_and_stops_all_the_same(
    whole: Whole, tmp_path: Path, broken: str
) -> None:
    folder, command = whole
    run = tmp_path / "run"
    read, write = os.pipe()
    stderr = write if broken == "closed" else os.open("/dev/full", os.O_WRONLY)
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "train.py"), *command, f"run.dir={run}"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=stderr,
    )  # fmt: skip
    os.close(stderr)
    os.close(read)
    wait_for(
        lambda: num_rows(run) >= 33, process
    )  # past an evaluation, of which a line would be printed
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert (
        sorted(path.name for path in (run / "checkpoints").iterdir())[-1]
        == f"step_{num_rows(run):08d}"
    )
    assert train(*command, f"run.dir={run}", cwd=tmp_path).returncode == 0
    assert_same_run(folder, run)


# -- a process dies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_of_two_processes_raises_its_traceback_is_what_is_seen_and_no_orphan_is_left(
    whole: Whole, tmp_path: Path, rank: int
) -> None:
    folder, command = whole
    run = tmp_path / "run"
    again = [*command, f"run.dir={run}", "launch.num_processes=2"]
    began = time.monotonic()
    done = train(*again, cwd=tmp_path, PYTHONPATH=INSIDE, SABOTAGE=f"vo_rope:{rank}:25:raise")
    assert time.monotonic() - began < 60
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert f"RuntimeError: sabotage of process {rank}" in done.stderr
    assert f"process {rank} of 2 failed" in done.stderr
    assert not processes_of(run)
    assert train(*again, cwd=tmp_path).returncode == 0
    for left, right in zip(numbers(folder), numbers(run), strict=True):
        assert left["train/loss"] == pytest.approx(right["train/loss"], abs=2e-4)


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_of_two_processes_is_killed_the_job_ends_within_a_minute_and_says_which(
    whole: Whole, tmp_path: Path, rank: int
) -> None:
    _, command = whole
    run = tmp_path / "run"
    process = start(
        *command, f"run.dir={run}", "launch.num_processes=2", "train.num_steps=100000", cwd=tmp_path
    )
    wait_for(lambda: num_rows(run) >= 15, process)
    workers = sorted(
        pid for pid, words in processes_of(run).items() if "rope_exp.training.worker" in words
    )
    os.kill(workers[rank], signal.SIGKILL)
    killed = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - killed < 60
    assert process.returncode == 1
    assert f"process {rank} of 2 was ended by SIGKILL" in stderr
    assert "Traceback" not in stderr
    assert not processes_of(run)


def test_a_process_that_hangs_beside_one_that_raised_is_ended(whole: Whole, tmp_path: Path) -> None:
    _, command = whole
    run = tmp_path / "run"
    process = start(
        *command, f"run.dir={run}", "launch.num_processes=2", "train.num_steps=100000",
        cwd=tmp_path, PYTHONPATH=INSIDE, SABOTAGE="vo_rope:1:15:hang",
    )  # fmt: skip
    wait_for(lambda: num_rows(run) >= 14, process)
    time.sleep(0.5)
    workers = sorted(
        pid for pid, words in processes_of(run).items() if "rope_exp.training.worker" in words
    )
    os.kill(workers[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "process 0 of 2 was ended by SIGKILL" in stderr
    assert not processes_of(run)


def test_what_the_first_process_refuses_is_one_sentence_and_not_the_others_traceback(
    whole: Whole, tmp_path: Path
) -> None:
    _, command = whole
    run = tmp_path / "run"
    again = [*command, f"run.dir={run}", "launch.num_processes=2", "train.num_steps=100000"]
    process = start(*again, cwd=tmp_path)
    wait_for(lambda: num_rows(run) >= 15, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    done = train(*again, cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: {run / 'metrics.jsonl'} was changed" in done.stderr
    assert "Traceback" not in done.stderr
    assert " of 2 failed" not in done.stderr


def test_processes_that_see_different_folders_are_refused_before_they_train(
    whole: Whole, tmp_path: Path
) -> None:
    _, command = whole
    command = [*command, "run.dir=run", "launch.device=cpu", "train.num_steps=100000"]
    hosts = [tmp_path / "host0", tmp_path / "host1"]
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    for host in hosts:
        host.mkdir()

    def both() -> list["subprocess.Popen[str]"]:
        world = {
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        return [
            start(*command, cwd=host, RANK=str(rank), ACCELERATE_USE_CPU="true", **world)
            for rank, host in enumerate(hosts)
        ]

    first = both()
    wait_for(lambda: num_rows(hosts[0] / "run") >= 12, first[0])
    for process in first:
        process.send_signal(signal.SIGTERM)
    assert [process.communicate(timeout=60) and process.returncode for process in first] == [75, 75]
    rows = num_rows(hosts[0] / "run")
    again = both()  # the checkpoint lies with the first process alone
    for process in again:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 2, stderr
        assert re.search(
            r"error: process 1 begins at step=0 and process 0 at [1-9]\d*; all of them must see the same",
            stderr,
        )
    assert num_rows(hosts[0] / "run") == rows


# -- numbers blow up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", ["nan", "inf", "loss"])
def test_one_bad_number_on_one_process_of_two_stops_both_before_the_update(
    tmp_path: Path, tiny_overrides: list[str], poison: str
) -> None:
    run = tmp_path / "run"
    command = [*tiny_overrides, "train.num_steps=20", "launch.num_processes=2", "pe=vo_rope"]
    done = train(*command, cwd=tmp_path, PYTHONPATH=INSIDE, SABOTAGE=f"vo_rope:1:9:{poison}")
    assert done.returncode == 3, done.stderr
    assert "diverged: after 8 steps a loss or a gradient was not finite" in done.stderr
    result = read_json(run / "result.json")
    assert (result["status"], result["diverged_step"], result["steps"]) == ("diverged", 9, 8)
    assert [row["step"] for row in read_metrics(run)] == list(range(1, 9))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step_00000006",
        "step_00000008",
    ]


# -- elsewhere, and on other data --------------------------------------------------------------------------------------


def test_two_processes_to_one_is_the_same_run_up_to_rounding_and_leaves_a_mark(
    whole: Whole, tmp_path: Path
) -> None:
    folder, command = whole
    run = tmp_path / "run"
    process = start(*command, f"run.dir={run}", "launch.num_processes=2", cwd=tmp_path)
    wait_for(lambda: num_rows(run) >= 20, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert train(*command, f"run.dir={run}", cwd=tmp_path).returncode == 0
    one, moved = (read_json(path / "result.json") for path in (folder, run))
    assert one["order_sha256"] == moved["order_sha256"]
    for left, right in zip(numbers(folder), numbers(run), strict=True):
        assert left["train/loss"] == pytest.approx(right["train/loss"], abs=2e-4)
    marks = read_json(run / "env.json")["marks"]
    assert any("went on with world_size 1 after 2" in mark for mark in marks)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def sweep(tiny_overrides: list[str], *words: str) -> list[str]:
    return [
        "-m",
        *(word for word in tiny_overrides if "run.dir" not in word),
        "run.group=some",
        *words,
    ]


@pytest.mark.parametrize(
    "what", ["raise", "memory", pytest.param("killed", marks=pytest.mark.torture)]
)
def test_one_broken_run_of_a_sweep_is_named_with_its_log_and_a_rerun_starts_it_alone(
    tmp_path: Path, tiny_overrides: list[str], what: str
) -> None:
    command = sweep(tiny_overrides, "pe=nope,vo_rope,qk_rope", "train.num_steps=30")
    runs = tmp_path / "results/runs/some"
    sabotage = f"vo_rope:0:5:{'hang' if what == 'killed' else what}"
    process = start(*command, cwd=tmp_path, PYTHONPATH=INSIDE, SABOTAGE=sabotage)
    if what == "killed":
        wait_for(lambda: num_rows(runs / "vo_rope/seed0") >= 4, process)
        [victim] = [
            pid
            for pid, words in processes_of(Path("runs/some/vo_rope")).items()
            if "rope_exp.training.worker" in words
        ]
        os.kill(victim, signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "vo_rope-s0: failed (exit code 1), see results/runs/some/vo_rope/seed0/log.txt" in stderr
    log = (runs / "vo_rope/seed0/log.txt").read_text()
    words = {
        "raise": "sabotage of process 0",
        "memory": "error: out of memory",
        "killed": "ended by SIGKILL",
    }
    assert words[what] in log
    assert sorted(path.parent.parent.name for path in runs.glob("*/seed0/result.json")) == [
        "nope",
        "qk_rope",
    ]
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/seed0/env.json")}
    assert train(*command, cwd=tmp_path).returncode == 0
    after = {path: path.stat().st_mtime_ns for path in runs.glob("*/seed0/env.json")}
    assert [path.parent.parent.name for path in before if before[path] != after[path]] == [
        "vo_rope"
    ]


def test_two_sweeps_at_once_on_one_group_run_every_cell_once(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    command = sweep(tiny_overrides, "pe=nope,vo_rope,qk_rope,k_rope", "train.num_steps=30")
    both = [start(*command, cwd=tmp_path) for _ in range(2)]
    for process in both:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    runs = tmp_path / "results/runs/some"
    assert len(list(runs.glob("*/seed0/result.json"))) == 4
    for env in runs.glob("*/seed0/env.json"):
        assert len(read_json(env)["started"]) == 1, env


def test_when_the_dispatcher_of_a_sweep_is_killed_its_runs_end_and_a_rerun_picks_up(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    command = sweep(
        tiny_overrides, "pe=nope,vo_rope", "train.num_steps=200", "launch.max_parallel=2"
    )
    runs = tmp_path / "results/runs/some"
    process = start(*command, cwd=tmp_path)
    wait_for(lambda: all(num_rows(runs / pe / "seed0") >= 5 for pe in ("nope", "vo_rope")), process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while processes_of(Path("runs/some")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert train(*command, cwd=tmp_path).returncode == 0
    for pe in ("nope", "vo_rope"):
        assert [row["step"] for row in read_metrics(runs / pe / "seed0")] == list(range(1, 201))


@pytest.mark.torture
def test_two_hundred_tiny_runs_in_one_sweep_keep_memory_and_start_up_flat(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    words = [
        "train.num_steps=1",
        "train.eval_every=1",
        "train.save_every=1",
        "launch.max_parallel=2",
    ]
    command = sweep(
        tiny_overrides, *words, "pe=nope,vo_rope", f"seed={','.join(map(str, range(100)))}"
    )
    runs = tmp_path / "results/runs/some"
    process = start(*command, cwd=tmp_path)
    status = Path(f"/proc/{process.pid}/status")
    memory: dict[int, int] = {}  # kB in use by the number of runs that are done

    def done() -> int:
        return len(list(runs.glob("*/seed*/result.json")))

    while process.poll() is None:
        resident = re.search(r"VmRSS:\s+(\d+)", status.read_text())
        if resident:
            memory[done()] = int(resident[1])
        time.sleep(0.2)
    assert process.returncode == 0, process.communicate()[1]
    process.communicate()
    assert done() == 200
    ended = sorted(path.stat().st_mtime for path in runs.glob("*/seed*/result.json"))
    first, last = ended[49] - ended[9], ended[189] - ended[149]
    early, late = (
        max(memory[n] for n in memory if 5 < n < 20),
        max(memory[n] for n in memory if n > 180),
    )
    print(f"dispatcher: {early // 1024} MiB after 5 to 20 runs, {late // 1024} MiB at the end")
    print(f"40 runs took {first:.0f} s at the beginning, {last:.0f} s at the end")
    assert late < early + 16 * 1024
    assert last < 1.5 * first


# -- schedulers --------------------------------------------------------------------------------------------------------


def test_the_batch_script_of_the_readme_goes_on_after_its_time_limit(
    whole: Whole, tmp_path: Path
) -> None:
    folder, command = whole
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    block = re.search(r"    #!/bin/bash\n(?:    .*\n)+", readme)
    assert block
    words = " ".join([*command, f"run.dir={tmp_path / 'run'}"])
    script = re.sub(r"^    ", "", block[0], flags=re.MULTILINE)
    script = re.sub(
        r"python train.py .* \|\|", f"{sys.executable} {REPOSITORY / 'train.py'} {words} ||", script
    )
    (tmp_path / "job.sh").write_text(script)
    for name, does in (("srun", 'exec "$@"'), ("scontrol", f'echo "$@" >> {tmp_path}/requeued')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    job = ["bash", str(tmp_path / "job.sh")]

    process = subprocess.Popen(
        job, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: num_rows(tmp_path / "run") >= 5, process)
    for pid, words in processes_of(
        tmp_path / "run"
    ).items():  # SLURM signals every process of a step
        if "job.sh" not in words:
            os.kill(pid, signal.SIGUSR1)
    process.communicate(timeout=60)
    assert (tmp_path / "requeued").read_text() == "requeue 17\n"
    subprocess.run(job, env=environment, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "requeued").read_text() == "requeue 17\n"
    assert_same_run(folder, tmp_path / "run")


def test_a_launcher_that_raises_in_the_dispatcher_leaves_a_checkpoint_first(
    whole: Whole, tmp_path: Path
) -> None:
    # submitit's handler of SIGUSR2 requeues the job and ends the process by an exception, in our waiting loop.
    folder, command = whole
    run = tmp_path / "run"
    script = f"""
import signal, sys
from rope_exp import launch
from rope_exp.compose import run_config
from rope_exp.machine import settle
signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(9))
launch.dispatch([settle(run_config({[*command, f"run.dir={run}"]!r}))])
"""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: num_rows(run) >= 13, process)
    process.send_signal(signal.SIGUSR2)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 9, stderr
    assert not (run / "result.json").exists()
    saved = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert int(saved[-1].removeprefix("step_")) == num_rows(run) >= 13
    assert train(*command, f"run.dir={run}", cwd=tmp_path).returncode == 0
    assert_same_run(folder, run)
