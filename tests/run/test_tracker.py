"""wandb, the real package and real processes: what it is told is read back, and what fails there stays there.

No test reaches wandb's own servers. Online, a small stand-in for them on this machine answers as much as wandb 0.31
asks, and keeps the history that it is sent.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configs import REPOSITORY, TINY
from support.runs import assert_same_run, start

from rope_exp.config.run import RunConfig
from rope_exp.run import tracker as track
from rope_exp.run.folder import write_config
from rope_exp.run.metrics import read_metrics
from rope_exp.run.tracker import follow, mirrored, run_id
from rope_exp.system.files import write_json

KEY = "c0ffee" * 6 + "c0ff"  # as long as a real one
LOST_SECONDS = 10.0  # the most that a tracker may cost a run, whatever happens
WARNING = "warning: the wandb tracker failed ("


# -- a stand-in for wandb's servers ----------------------------------------------------------------------------------


class Wandb(ThreadingHTTPServer):
    """Keeps the history of each run; `answers` turns to "refuse" (401), "never" or "die" for a fault."""

    daemon_threads = True
    answers = "all"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.histories: dict[str, list[Any]] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news here."""

    def query(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """What wandb's GraphQL answers, as far as a run needs it."""
        entity, run = {"id": "e", "name": "me"}, values.get("name")
        if name == "Viewer":
            return {
                "viewer": {
                    "id": "v",
                    "entity": "me",
                    "username": "me",
                    "flags": "{}",
                    "teams": {"edges": []},
                }
            }
        if name == "CreateRunFiles":
            files = [
                {"name": file, "uploadUrl": f"{self.address}/{file}"} for file in values["files"]
            ]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if name == "RunResumeStatus":
            rows = self.histories.get(run)
            bucket = None if rows is None else {
                "id": "b", "name": run, "summaryMetrics": "{}", "logLineCount": 0, "historyLineCount": len(rows),
                "eventsLineCount": 0, "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
                "eventsTail": "[]", "config": "{}", "tags": [], "wandbConfig": '{"t": 1}',
            }  # fmt: skip
            return {"model": {"id": "m", "name": "rope_exp", "entity": entity, "bucket": bucket}}
        if name == "UpsertBucket":
            rows, new = self.histories.setdefault(run, []), run not in self.histories
            project = {"id": "p", "name": "rope_exp", "entity": entity}
            bucket = {
                "id": "b",
                "name": run,
                "config": "{}",
                "project": project,
                "historyLineCount": len(rows),
            }
            return {"upsertBucket": {"bucket": bucket, "inserted": new}}
        return {}


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Wandb

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.answers == "never":
            time.sleep(60)
        if self.server.answers in ("never", "die"):
            self.close_connection = True
            return
        values: dict[str, Any] = {}
        if self.path == "/graphql":
            asked = json.loads(body)
            values = {
                "data": self.server.query(asked.get("operationName"), asked.get("variables") or {})
            }
        elif self.path.endswith("/file_stream"):
            sent = (
                json.loads(body)
                .get("files", {})
                .get("wandb-history.jsonl", {"offset": 0, "content": []})
            )
            rows = self.server.histories[self.path.split("/")[-2]]
            rows[sent["offset"] : sent["offset"] + len(sent["content"])] = map(
                json.loads, sent["content"]
            )
        content = json.dumps(values).encode()
        self.send_response(401 if self.server.answers == "refuse" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = answer  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def wandb_server() -> Iterator[Wandb]:
    with Wandb() as server:
        yield server
        server.shutdown()


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untracked(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> tuple[Path, list[str]]:
    """A run without a tracker, and its command line without run.dir."""
    folder = tmp_path_factory.mktemp("untracked")
    command = [*TINY, f"data.path={corpus}", "data.holdout_fraction=0.2", f"data.cache_dir={cache}"]
    command += ["train.num_steps=400", "train.save_every=200", "train.eval_every=200", "pe=vo_rope"]
    process = start(*command, f"run.dir={folder / 'run'}", cwd=folder)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return folder / "run", command


class Tracked:
    """`train.py tracker=wandb` in `tmp_path / "run"`; whatever it starts is known by an environment of its own."""

    def __init__(
        self,
        tmp_path: Path,
        command: list[str],
        *,
        prefix: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        self.folder, self.home = tmp_path / "run", tmp_path / "home"
        self.home.mkdir(exist_ok=True)
        self.mark = f"ROPE_EXP_TEST={tmp_path}"
        train = [*prefix, sys.executable, str(REPOSITORY / "train.py")]
        own = {
            "HOME": str(self.home),
            "WANDB_API_KEY": KEY,
            "ROPE_EXP_TEST": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [*train, *command, f"run.dir={self.folder}", "tracker=wandb"],
            cwd=tmp_path,
            env=os.environ | own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> dict[str, int]:
        """Those of this run that are alive: "worker", "mirror", "wandb" and others, and their pids."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if state == "Z" or self.mark.encode() not in (path / "environ").read_bytes().split(
                    b"\0"
                ):
                    continue
                words = (path / "cmdline").read_text()
                known = {
                    "rope_exp.training.worker": "worker",
                    "rope_exp.run.tracker": "mirror",
                    "wandb-core": "wandb",
                }
                found[next((name for word, name in known.items() if word in words), words)] = int(
                    path.name
                )
        return found

    def wait(self, condition: Callable[[], Any], poll_s: float = 0.05) -> None:
        deadline = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(poll_s)

    @contextlib.contextmanager
    def held(self, until: Callable[[], Any]) -> Iterator[dict[str, int]]:
        """Training stands still from an early row on until the block is done; it begins once `until()` is true."""
        metrics = self.folder / "metrics.jsonl"
        self.wait(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 5, poll_s=0.005)
        worker = self.processes()["worker"]
        os.kill(worker, signal.SIGSTOP)
        try:
            assert not (self.folder / "result.json").exists()
            self.wait(until)
            yield self.processes()
        finally:
            os.kill(worker, signal.SIGCONT)

    def end(self) -> str:
        """Wait for the end, and for that of everything that was started.

        Returns:
            What it wrote to standard error.
        """
        _, stderr = self.process.communicate(timeout=90)
        self.wait(lambda: not self.processes())
        return stderr

    def finish(self) -> str:
        """`end`, of a run that has to finish like any other, and soon after its result."""
        result = self.folder / "result.json"
        self.wait(lambda: result.exists() or self.process.poll() is not None)
        self.wait(
            lambda: "mirror" not in self.processes()
        )  # a busy machine takes seconds to end any Python
        lost_s = time.time() - result.stat().st_mtime
        stderr = self.end()
        print(f"after result.json the mirror took {lost_s:.1f} s")
        assert self.process.returncode == 0, stderr
        assert lost_s <= LOST_SECONDS
        assert "Traceback" not in stderr
        return stderr


def recorded(folder: Path) -> list[Any]:
    """Every record of the one .wandb file below `folder`: protobuf messages in LevelDB's log format.

    After 7 bytes of header, blocks of 32 KiB hold chunks of (crc32, 2 bytes of length, type) and data; a record is
    one whole chunk (type 1) or a first, middles and a last one (2, 3, 4).
    """
    from wandb.proto import wandb_internal_pb2

    [path] = folder.rglob("*.wandb")
    content, position, parts, records = path.read_bytes(), 7, b"", []
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:  # too little for a header: the rest of the block is padding
            position += left
            continue
        length, kind = (
            int.from_bytes(content[position + 4 : position + 6], "little"),
            content[position + 6],
        )
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


def history(records: list[Any]) -> list[dict[str, Any]]:
    """The rows among them, without what wandb adds."""
    rows = [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records
        if record.HasField("history")
    ]
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]


# -- what is mirrored --------------------------------------------------------------------------------------------------


def test_one_command_mirrors_a_run_from_its_files(
    tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = tiny("tracker=wandb", "tracker.mode=offline", "pe=vo_rope", "seed=3")
    folder = tmp_path / "run"
    folder.mkdir()
    write_config(folder, config)
    rows = [
        {"step": step, "tokens": 64 * step, "train/loss": 5.0 - step, "tokens_per_s": None}
        for step in (1, 2, 3)
    ]
    rows[2]["val/loss"] = 4.5
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = {
        "status": "finished", "pe": "vo_rope", "rotate": ["v", "o"], "seed": 3, "params": 1, "tokens": 192, "steps": 3,
        "val/loss": 4.5, "train/loss_last": 2.0, "tokens_per_s": None, "mfu": None, "wall_s": 1.0,
        **{f"{what}_sha256": "0" * 64 for what in ("init", "data", "order", "config", "group")},
    }  # fmt: skip
    write_json(folder / "result.json", result)
    command = [sys.executable, str(REPOSITORY / "scripts" / "mirror.py"), str(folder)]
    done = subprocess.run(
        command, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}: mirrored as {run_id(folder)}\n"
    records = recorded(folder)
    [run] = [record.run for record in records if record.HasField("run")][:1]
    assert (run.run_id, run.display_name, run.run_group, run.job_type, run.project) == (
        run_id(folder), "vo_rope-s3", config.group, "vo_rope", "rope_exp",
    )  # fmt: skip
    stored = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {key: stored[key] for key in config.to_dict()} == config.to_dict()
    metrics = [record.metric for record in records if record.HasField("metric")]
    assert any(metric.glob_name == "*" and metric.step_metric == "tokens" for metric in metrics)
    assert history(records) == rows
    summary = {item.key: item.value_json for record in records for item in record.summary.update}
    assert summary["status"] == '"finished"'
    assert any(
        record.HasField("exit") for record in records
    )  # wandb's process is done when the command is


def test_what_is_no_run_is_not_mirrored_and_nothing_is_written(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "scripts" / "mirror.py"), str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path / 'nowhere' / 'config.yaml'} cannot be read")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_sends_wandb_what_it_lacks_and_a_killed_run_leaves_nobody_behind(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: Wandb
) -> None:
    folder, command = untracked
    killed = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address)
    with killed.held(until=lambda: wandb_server.histories) as processes:
        os.kill(processes["worker"], signal.SIGKILL)
    killed.end()
    assert killed.process.returncode == 1
    [[name, rows]] = wandb_server.histories.items()
    before = [row["step"] for row in rows]
    assert before == list(range(1, len(before) + 1))
    assert before  # the mirror sent what was there, and ended

    stderr = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address).finish()
    assert WARNING not in stderr
    assert_same_run(folder, tmp_path / "run")
    assert list(wandb_server.histories) == [name]
    for key in ("step", "train/loss", "val/loss"):
        assert [row.get(key) for row in rows] == [
            row.get(key) for row in read_metrics(tmp_path / "run")
        ]


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(0, 8))
def test_a_growing_file_is_followed_row_by_row_wherever_its_writer_was(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], num_rows: int
) -> None:
    path, ended = tmp_path_factory.mktemp("follow") / "metrics.jsonl", threading.Event()
    content = "".join(json.dumps({"step": step}) + "\n" for step in range(1, num_rows + 1)) + '{"step"'
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr(track, "POLL_SECONDS", 0)
        pieces = iter(
            [
                content[left:right]
                for left, right in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True)
            ]
        )

        def write(
            timeout: float,
        ) -> None:  # where the mirror would wait, the writer comes to its turn
            piece = next(pieces, None)
            ended.set() if piece is None else file.write(piece)
            file.flush()

        patch.setattr(ended, "wait", write)
        for row in follow(path, ended):
            seen.append(row["step"])
    assert seen == list(range(1, num_rows + 1))


@given(st.binary(max_size=40))
def test_a_damaged_id_is_drawn_anew_and_then_kept(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("id")
    (folder / "wandb_id").write_bytes(content)
    identity = run_id(folder)
    assert len(identity) == 16
    assert run_id(folder) == identity == (folder / "wandb_id").read_text()


def test_none_starts_nothing_and_writes_nothing(
    tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    with mirrored(tiny(), tmp_path):
        assert not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    assert list(tmp_path.iterdir()) == []


# -- what fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "FileNotFoundError"),
        ("exit 3", "its process ended with exit code 3"),
        ("exec sleep 60", "its process ended with SIGKILL"),
    ],
    ids=["cannot start", "breaks", "hangs"],
)
def test_a_mirror_that_cannot_start_breaks_or_hangs_is_one_warning(
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str | None,
    reason: str,
) -> None:
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr(track, "KILL_SECONDS", 1)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with mirrored(tiny("tracker=wandb"), tmp_path):
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"{WARNING}{reason}")
    assert stderr.count("\n") == 1


def assert_one_warning(stderr: str, *words: str) -> None:
    [line] = [line for line in stderr.splitlines() if "warning" in line]
    assert line.startswith(WARNING)
    assert any(word in line for word in words), line


def test_a_host_that_cannot_be_reached_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = untracked
    stderr = Tracked(tmp_path, command, WANDB_BASE_URL="http://127.0.0.1:9").finish()
    assert_one_warning(stderr, "wandb was not done 5 s after the run")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_a_host_that_never_answers_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: Wandb
) -> None:
    folder, command = untracked
    wandb_server.answers = "never"
    stderr = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address).finish()
    assert_one_warning(stderr, "wandb was not done 5 s after the run")
    assert_same_run(folder, tmp_path / "run")


def test_a_host_that_is_gone_in_the_middle_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: Wandb
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address)
    with tracked.held(until=lambda: wandb_server.histories):
        wandb_server.answers = "die"
    assert_one_warning(tracked.finish(), "wandb was not done 5 s after the run")
    assert_same_run(folder, tmp_path / "run")


def test_a_wrong_key_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: Wandb
) -> None:
    folder, command = untracked
    wandb_server.answers = "refuse"
    assert_one_warning(
        Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address).finish(), "401"
    )
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "reason"), [("", "No API key configured"), ("short", "WANDB_API_KEY invalid")]
)
@pytest.mark.torture
def test_no_key_and_half_a_key_cost_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: Wandb, key: str, reason: str
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address, WANDB_API_KEY=key)
    assert_one_warning(tracked.finish(), reason)
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_a_key_that_is_revoked_in_the_middle_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: Wandb
) -> None:
    """wandb raises nothing then: it prints, and its finish() returns as if all were well."""
    folder, command = untracked
    tracked = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address)
    with tracked.held(until=lambda: wandb_server.histories):
        wandb_server.answers = "refuse"
    assert_one_warning(tracked.finish(), "Fatal error while uploading data")
    assert_same_run(folder, tmp_path / "run")


def test_a_killed_mirror_costs_a_warning_and_one_command_makes_its_history_whole(
    untracked: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["mirror"], signal.SIGKILL)
    assert_one_warning(tracked.finish(), "its process ended with SIGKILL")
    assert_same_run(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "wandb")
    remedy = [sys.executable, str(REPOSITORY / "scripts" / "mirror.py"), str(tmp_path / "run")]
    done = subprocess.run(
        remedy, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert history(recorded(tmp_path / "run")) == read_metrics(tmp_path / "run")


@pytest.mark.torture
def test_wandbs_own_process_killed_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["wandb"], signal.SIGKILL)
    assert_one_warning(
        tracked.finish(), "Connection", "Broken pipe", "HandleAbandoned", "MailboxClosed"
    )
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_mirror_that_is_told_to_stop_sees_its_run_to_the_end(
    untracked: tuple[Path, list[str]], tmp_path: Path, number: signal.Signals
) -> None:
    """Schedulers tell every process of a job. (wandb's own process listens, and ends: the test above.)"""
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["mirror"], number)
    assert "warning" not in tracked.finish()
    assert history(recorded(tmp_path / "run")) == read_metrics(tmp_path / "run")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_a_mirror_that_stands_still_is_killed(
    untracked: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["mirror"], signal.SIGSTOP)
    assert_one_warning(tracked.finish(), "its process ended with SIGKILL")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.parametrize("size", ["4k", pytest.param("64k", marks=pytest.mark.torture)])
def test_a_full_disk_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, size: str
) -> None:
    """wandb itself only logs that, on the same disk; the mirror looks."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces, so no small disk can be mounted")
    folder, command = untracked
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000400")
    (tmp_path / "run" / "wandb").mkdir()
    mount = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", mount, str(tmp_path / "run" / "wandb"))
    stderr = Tracked(tmp_path, [*command, "tracker.mode=offline"], prefix=prefix).finish()
    assert_one_warning(stderr, "No space left on device")
    assert_same_run(folder, tmp_path / "run")


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["offline", pytest.param("online", marks=pytest.mark.torture)])
def test_no_file_that_a_run_writes_holds_a_secret(
    tiny_overrides: list[str], tmp_path: Path, wandb_server: Wandb, mode: str
) -> None:
    """From the environment, or typed on the command line; also the cache, and what wandb leaves in its folders."""
    command = [
        word for word in tiny_overrides if not word.startswith(("run.dir", "data.cache_dir"))
    ]
    command += [f"data.cache_dir={tmp_path / 'cache'}", f"tracker.mode={mode}"]
    secrets = {"HF_TOKEN": "canary0" * 5, "AWS_SECRET_ACCESS_KEY": "canary1" * 5}
    stderr = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address, **secrets).finish()
    assert "warning" not in stderr
    for override in ("tracker.api_key=", "+tracker.api_key="):
        refused = Tracked(tmp_path, [*command, f"{override}{'canary2' * 5}"])
        assert refused.end().count("\n") == 1
        assert refused.process.returncode == 2
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in written)
    assert any(path.is_relative_to(tmp_path / "home") for path in written)
    assert any(path.is_relative_to(tmp_path / "cache") for path in written)
    for path in written:
        content = path.read_bytes()
        assert KEY.encode() not in content, path
        assert b"canary" not in content, path
