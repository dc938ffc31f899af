"""A stand-in for the Hugging Face hub on localhost, with faults on demand.

It answers the requests that `datasets`, `huggingface_hub` and `transformers` make: information on
a repository and revision, its tree, and files by HEAD and by range.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

INFO = re.compile(r"/api/((?:datasets|models)/[^/]+/[^/]+)(?:/revision/(\w+))?")
TREE = re.compile(r"/api/((?:datasets|models)/[^/]+/[^/]+)/tree/(\w+)/?(.*)")
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/(\w+)/(.*)")


@dataclass
class Fault:
    """A fault in answers to requests whose "METHOD path" has a match of the regex `matches`.

    It occurs `times` times. It is an HTTP status, or "half": the answer breaks off in the middle.
    """

    kind: int | Literal["half"]
    matches: str = ""
    times: float = float("inf")
    code: str = ""


@dataclass
class Hub:
    """`with Hub({"datasets/owner/corpus": {"train.parquet": b"..."}}) as hub:` serves at `hub.url`.

    Attributes:
        requests: "METHOD path" of each request so far, in order.
        authorizations: the Authorization headers of the requests.
        faults: tried in order at each request, until one occurs.
    """

    repositories: Mapping[str, Mapping[str, bytes]]
    revision: str = "0123456789abcdef0123456789abcdef01234567"
    requests: list[str] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0),
            lambda *words: Handler(*words, hub=self),  # type: ignore[misc]
        )
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop answering."""
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *words: Any, hub: Hub) -> None:
        self.hub = hub
        super().__init__(*words)

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        request = f"{self.command} {self.path}"
        self.hub.requests.append(request)
        self.hub.authorizations.add(self.headers["Authorization"])
        faults = (
            each for each in self.hub.faults if each.times and re.search(each.matches, request)
        )
        self.fault = next(faults, None)
        if self.fault is not None:
            self.fault.times -= 1
        if self.fault is None or self.fault.kind == "half":
            self.route(unquote(urlsplit(self.path).path))
        else:
            self.error(self.fault.kind, self.fault.code)

    do_HEAD = do_GET

    def route(self, path: str) -> None:
        if found := FILE.fullmatch(path):
            files = self.files(f"{found[1] or 'models/'}{found[2]}", found[3])
            if files is not None and found[4] in files:
                self.file(files[found[4]])
            elif files is not None:
                self.error(404, "EntryNotFound")
        elif found := TREE.fullmatch(path):
            files = self.files(found[1], found[2])
            if files is not None:
                self.json(entries(files, found[3], is_deep="recursive=true" in self.path))
        elif found := INFO.fullmatch(path):
            files = self.files(found[1], found[2])
            if files is not None:
                names = [{"rfilename": name} for name in files]
                facts = {"id": found[1].partition("/")[2], "sha": self.hub.revision}
                self.json({**facts, "siblings": names, "private": False, "tags": []})
        else:
            self.error(404)

    def files(self, name: str, revision: str | None) -> Mapping[str, bytes] | None:
        """Return the files of a repository, or answer that it or its revision is not there."""
        if name not in self.hub.repositories:
            # Without credentials, the real hub answers 401 for an unknown repository.
            self.error(401, "RepoNotFound")
        elif revision not in (None, "main", self.hub.revision):
            self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return self.hub.repositories[name]
        return None

    def file(self, content: bytes) -> None:
        facts = {"ETag": f'"{sha1(content)}"', "Accept-Ranges": "bytes"}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or ""):
            first, last = int(part[1]), min(int(part[2] or len(content)), len(content) - 1)
            facts["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self.answer(206, content[first : last + 1], facts)
        else:
            self.answer(200, content, facts)

    def json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def error(self, status: int, code: str = "", message: str = "no") -> None:
        named = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
        self.answer(status, json.dumps({"error": message}).encode(), named)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        facts = {"X-Repo-Commit": self.hub.revision, "Content-Length": str(len(body))}
        for name, value in {**facts, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.fault is not None and self.fault.kind == "half":
            body = body[: len(body) // 2]
            self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(body)


def entries(files: Mapping[str, bytes], folder: str, *, is_deep: bool) -> list[dict[str, Any]]:
    """Return the files below a folder, or, if not `is_deep`, its files and folders."""
    found = {}
    prefix = folder and f"{folder}/"
    for path, content in files.items():
        if not path.startswith(prefix):
            continue
        name, _, below = path.removeprefix(prefix).partition("/")
        if below and not is_deep:
            found[name] = {"type": "directory", "path": prefix + name, "size": 0, "oid": "0" * 40}
        else:
            found[path] = {"type": "file", "path": path, "size": len(content), "oid": sha1(content)}
    return list(found.values())


def sha1(content: bytes) -> str:
    """Return the digest by which the hub tells versions of a file."""
    return hashlib.sha1(content).hexdigest()
