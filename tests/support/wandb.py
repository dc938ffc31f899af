"""A fake wandb server, runs that report to it, and a reader of wandb's files.

No test reaches wandb's own servers. The fake gives the answers that wandb 0.31 needs, and keeps
the data that it receives.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.configs import REPOSITORY

KEY = "c0ffee" * 6 + "c0ff"  # as long as a real one
LOST_SECONDS = 10.0  # from result.json to the worker's end at most, with FINISH_SECONDS
FINISH_SECONDS = 3
WARNING = "warning: the wandb tracker failed ("


class WandbServer(ThreadingHTTPServer):
    """A server that keeps each run's data; `answers` may be "all" or "die".

    Attributes:
        histories: the rows of each run, by its id.
        ends: the exit code of each run that ended.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answers = "all"
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.histories: dict[str, list[Any]] = {}
        self.ends: dict[str, int] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: a killed client is expected here."""

    def query(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a GraphQL query of a run; other queries get an empty one."""
        entity = {"id": "e", "name": "me"}
        project = {"id": "p", "name": "rope_exp", "entity": entity}
        if name == "Viewer":
            viewer = {"id": "v", "entity": "me", "username": "me", "flags": "{}"}
            return {"viewer": viewer | {"teams": {"edges": []}}}

        if name == "CreateRunFiles":
            files = [
                {"name": file, "uploadUrl": f"{self.address}/{file}"} for file in values["files"]
            ]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}

        if name == "RunResumeStatus":
            bucket = self._bucket(values["name"]) if values["name"] in self.histories else None
            return {"model": project | {"bucket": bucket}}

        if name == "UpsertBucket":
            is_new = values["name"] not in self.histories
            self.histories.setdefault(values["name"], [])
            bucket = self._bucket(values["name"]) | {"project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": is_new}}
        return {}

    def _bucket(self, run: str) -> dict[str, Any]:
        rows = self.histories[run]
        return {
            "id": "b",
            "name": run,
            "config": "{}",
            "summaryMetrics": "{}",
            "wandbConfig": '{"t": 1}',
            "tags": [],
            "logLineCount": 0,
            "historyLineCount": len(rows),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
            "eventsTail": "[]",
        }

    def stream(self, run: str, sent: dict[str, Any]) -> None:
        """Receive a part of a run's history, and its exit code once it is complete."""
        files = sent.get("files") or {}
        piece = files.get("wandb-history.jsonl", {"offset": 0, "content": []})
        end = piece["offset"] + len(piece["content"])
        rows = self.histories[run]
        rows[piece["offset"] : end] = map(json.loads, piece["content"])
        if sent.get("complete"):
            self.ends[run] = sent["exitcode"]


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.answers == "die":
            self.close_connection = True
            return

        values: dict[str, Any] = {}
        if self.path == "/graphql":
            asked = json.loads(body)
            variables = asked.get("variables") or {}
            values = {"data": self.server.query(asked.get("operationName"), variables)}
        elif self.path.endswith("/file_stream"):
            self.server.stream(self.path.split("/")[-2], json.loads(body))

        content = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = answer

    def log_message(self, *args: object) -> None:
        pass


class Tracked:
    """`train.py tracker=wandb` in `tmp_path / "run"`, and all processes that it starts.

    An environment variable identifies these processes.
    """

    def __init__(
        self,
        tmp_path: Path,
        command: list[str],
        *,
        prefix: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        self.folder = tmp_path / "run"
        self.home = tmp_path / "home"
        self.home.mkdir(exist_ok=True)
        self.mark = f"ROPE_EXP_TEST={tmp_path}"
        own = {
            "HOME": str(self.home),
            "WANDB_API_KEY": KEY,
            "ROPE_EXP_TEST": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "WANDB_FINISH_TIMEOUT": str(FINISH_SECONDS),
        }
        train = [*prefix, sys.executable, str(REPOSITORY / "train.py")]
        self.process = subprocess.Popen(
            [*train, *command, f"run.dir={self.folder}", "tracker=wandb"],
            cwd=tmp_path,
            env=os.environ | own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> dict[str, int]:
        """Return the pids of its live processes by role: "worker", "wandb" or the command line."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            # A process may end while it is examined.
            with contextlib.suppress(OSError):
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                environment = (path / "environ").read_bytes().split(b"\0")
                if state != "Z" and self.mark.encode() in environment:
                    found[_role((path / "cmdline").read_text())] = int(path.name)
        return found

    def wait(self, condition: Callable[[], Any], poll_s: float = 0.05) -> None:
        """Wait until `condition` holds."""
        deadline = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(poll_s)

    @contextlib.contextmanager
    def held(self, until: Callable[[], Any]) -> Iterator[dict[str, int]]:
        """Pause training after five rows, run the block once `until()` is true, and continue."""
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
        """Wait until it and all processes that it started have ended, and return its stderr."""
        _, stderr = self.process.communicate(timeout=90)
        self.wait(lambda: not self.processes())
        return stderr

    def finish(self, *, may_trace: bool = False) -> str:
        """Wait as `end` does, and assert success within LOST_SECONDS of result.json."""
        result = self.folder / "result.json"
        self.wait(lambda: result.exists() or self.process.poll() is not None)
        self.wait(lambda: "worker" not in self.processes())
        lost_s = time.time() - result.stat().st_mtime
        stderr = self.end()
        print(f"the run ended {lost_s:.1f} s after result.json")
        assert self.process.returncode == 0, stderr
        assert lost_s <= LOST_SECONDS
        assert may_trace or "Traceback" not in stderr
        return stderr


def _role(command: str) -> str:
    roles = {
        "rope_exp.training.worker": "worker",
        "wandb-core": "wandb",
    }
    return next((role for name, role in roles.items() if name in command), command)


def assert_one_warning(stderr: str, *words: str) -> None:
    """Assert that the only warning is the tracker's, and that it has one of `words`."""
    [line] = [line for line in stderr.splitlines() if "warning" in line]
    assert line.startswith(WARNING)
    assert any(word in line for word in words), line


def recorded(folder: Path) -> list[Any]:
    """Return all records of the one .wandb file below `folder`: protobuf in LevelDB's log format.

    After a header of 7 bytes, blocks of 32 KiB hold chunks: crc32, length (2 bytes), type, data. A
    record is one full chunk (type 1), or a first, any middle and a last chunk (2, 3, 4).
    """
    from wandb.proto import wandb_internal_pb2

    [path] = folder.rglob("*.wandb")
    content = path.read_bytes()
    position = 7
    parts = b""
    records = []
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        # The rest of a block is padding if it is too short for a chunk's header.
        if left < 7:
            position += left
            continue
        length = int.from_bytes(content[position + 4 : position + 6], "little")
        kind = content[position + 6]
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


def history(records: list[Any]) -> list[dict[str, Any]]:
    """Return the history rows of these records, with `_step` but without wandb's other keys."""
    rows = []
    for record in records:
        if record.HasField("history"):
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            rows.append({key: row[key] for key in row if key == "_step" or key[0] != "_"})
    return rows


def as_sent(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of metrics.jsonl in the form of `history`: the step as `_step`, and no nulls."""
    sent = []
    for row in rows:
        known = {key: value for key, value in row.items() if value is not None}
        sent.append({"_step": known.pop("step"), **known})
    return sent
