"""A fake Hugging Face hub on localhost, with faults on demand.

It answers the requests that `datasets`, `huggingface_hub` and `transformers` make: information on
a repository and revision, its tree in pages, paths-info, files by HEAD and by range, and large
files through a redirect to another host.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 2  # entries per page of a tree; the real hub sends 1,000
LARGE = 4096  # bytes from which a file is redirected to another host


@dataclass
class Fault:
    """A fault in answers to requests whose "METHOD path" has a match of the regex `matches`.

    It occurs `times` times. It is an HTTP status, or "half": the answer breaks off in the middle.
    """

    kind: int | Literal["half"]
    matches: str = ""
    times: float = float("inf")
    headers: Mapping[str, str] = field(default_factory=dict)


class Hub:
    """`with Hub({"datasets/owner/corpus": {"train.parquet": b"..."}}) as hub:` serves at `hub.url`.

    Attributes:
        requests: "METHOD path range" of each request so far, in order.
        authorizations: the Authorization headers of the requests.
        faults: tried in order at each request, until one occurs.
    """

    revision = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.requests: list[str] = []
        self.authorizations: set[str | None] = set()
        self.faults: list[Fault] = []
        self._lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            def setup(self) -> None:
                self.hub = hub
                super().setup()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def fault(self, request: str) -> Fault | None:
        """Record a request, and return its fault, if any."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times and re.search(fault.matches, request):
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        self.fault = self.hub.fault(
            f"{self.command} {self.path} {self.headers.get('Range', '')}".rstrip()
        )
        self.hub.authorizations.add(self.headers.get("Authorization"))
        if self.fault is None or self.fault.kind == "half":
            self.route()
        else:
            self.error(self.fault.kind, None, "a fault", **self.fault.headers)

    do_HEAD = do_POST = do_GET

    def route(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/files/(\w+)", path):
            served = self.hub.repositories.values()
            files = (content for files in served for content in files.values())
            self.file(next(content for content in files if sha1(content) == found[1]))
        elif found := re.fullmatch(
            r"/api/((?:datasets|models)/[^/]+/[^/]+)(?:/([\w-]+)/(\w+)(?:/(.*))?)?", path
        ):
            files_ = self.repository(found[1], found[3])
            if files_ is not None:
                self.api(found[1], files_, found[2] or "revision", found[4] or "")
        elif found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/(\w+)/(.*)", path):
            files_ = self.repository(f"{found[1] or 'models/'}{found[2]}", found[3])
            if files_ is None:
                return
            if found[4] not in files_:
                self.error(404, "EntryNotFound", "Entry not found")
            elif len(files_[found[4]]) < LARGE:
                self.file(files_[found[4]])
            else:
                content = files_[found[4]]
                location = f"http://localhost:{self.hub.port}/files/{sha1(content)}"
                linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{sha1(content)}"'}
                self.answer(302, b"", Location=location, **linked)
        else:
            self.error(404, None, "Not found")

    def repository(self, name: str, revision: str | None) -> Mapping[str, bytes] | None:
        files = self.hub.repositories.get(name)
        if files is None:
            # Without credentials, the real hub answers 401 for an unknown repository.
            self.error(401, "RepoNotFound", "Repository not found")
        elif revision not in (None, "main", self.hub.revision):
            self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return files

    def api(self, name: str, files: Mapping[str, bytes], what: str, folder: str) -> None:
        entries = [
            {"type": "file", "path": path, "size": len(content), "oid": sha1(content)}
            for path, content in sorted(files.items())
        ]
        if what == "tree":
            asked = urlsplit(self.path)
            query = parse_qs(asked.query)
            inside = [
                entry for entry in entries if str(entry["path"]).startswith(folder and f"{folder}/")
            ]
            if folder and not inside:
                self.error(404, "EntryNotFound", f"{folder} does not exist")
                return
            if query.get("recursive") != ["true"]:
                inside = children(inside, folder)
            start = int(query.get("cursor", ["0"])[0])
            recursive = query.get("recursive", ["false"])[0]
            page = f"{asked.path}?recursive={recursive}&cursor={start + PAGE}"
            more = {}
            if start + PAGE < len(inside):
                more = {"Link": f'<{self.hub.url}{page}>; rel="next"'}
            self.json(inside[start : start + PAGE], **more)
        elif what == "paths-info":
            wanted = re.findall(r"[\w./-]+\.\w+", unquote(self.body.decode()))
            self.json([entry for entry in entries if entry["path"] in wanted])
        else:
            kind, _, id_ = name.partition("/")
            siblings = [{"rfilename": entry["path"]} for entry in entries]
            info = {
                "id": id_,
                "sha": self.hub.revision,
                "private": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
            }
            self.json(
                {**info, "siblings": siblings, **({"modelId": id_} if kind == "models" else {})}
            )

    def file(self, content: bytes) -> None:
        facts = {"ETag": f'"{sha1(content)}"', "Accept-Ranges": "bytes"}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(part[1]), min(int(part[2] or len(content)), len(content) - 1)
            facts["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self.answer(206, content[first : last + 1], **facts)
        else:
            self.answer(200, content, **facts)

    def json(self, value: Any, **headers: str) -> None:
        self.answer(
            200, json.dumps(value).encode(), **{"Content-Type": "application/json"}, **headers
        )

    def error(self, status: int, code: str | None, message: str, **headers: str) -> None:
        named = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
        self.answer(status, json.dumps({"error": message}).encode(), **named, **headers)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        is_half = self.fault is not None and self.fault.kind == "half"
        self.send_response(status)
        for name, value in {"X-Repo-Commit": self.hub.revision, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if is_half else body)
        self.close_connection = is_half


def children(entries: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Return a folder's direct children: its files, and a directory entry for each subfolder."""
    found = {}
    for entry in entries:
        below = entry["path"][len(folder) :].lstrip("/")
        name = below.split("/")[0]
        path = f"{folder}/{name}".lstrip("/")
        found[path] = (
            entry
            if below == name
            else {"type": "directory", "path": path, "size": 0, "oid": sha1(path.encode())}
        )
    return list(found.values())


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
