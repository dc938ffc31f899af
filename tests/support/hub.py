"""A stand-in for the Hugging Face hub on localhost, with faults on demand.

It answers the requests that `datasets`, `huggingface_hub` and `transformers` make: information on
a repository and revision, its tree, and files by HEAD and by range.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

PATHS = re.compile(
    r"(?:/api)?/(?P<name>(?:(?:datasets|models)/)?[^/]+/[^/]+)"
    r"(?:/(?P<kind>revision|tree|resolve)/(?P<revision>\w+)/?(?P<path>.*))?"
)


class Hub:
    """`Hub({"datasets/owner/corpus": {"train.parquet": b"..."}})` serves at `hub.url`.

    Attributes:
        faults: HTTP status and error code of requests whose "METHOD path" matches a regex.
        requests: "METHOD path" of each request so far.
        authorizations: the Authorization headers of the requests.
    """

    revision = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.faults: dict[str, tuple[int, str]] = {}
        self.requests: list[str] = []
        self.authorizations: set[str | None] = set()
        handler = type("HubHandler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop answering."""
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        request = f"{self.command} {self.path}"
        self.hub.requests.append(request)
        self.hub.authorizations.add(self.headers["Authorization"])
        faults = [self.hub.faults[each] for each in self.hub.faults if re.search(each, request)]
        match = PATHS.fullmatch(unquote(urlsplit(self.path).path))
        assert match is not None, self.path
        name = match["name"] if match["name"].count("/") == 2 else f"models/{match['name']}"
        files = self.hub.repositories.get(name)
        if faults:
            self.error(*faults[0])
        elif files is None:
            # Without credentials, the real hub answers 401 for an unknown repository.
            self.error(401, "RepoNotFound")
        elif match["revision"] not in (None, "main", self.hub.revision):
            self.error(404, "RevisionNotFound")
        elif match["kind"] == "tree":
            self.json(entries(files, match["path"], is_deep="recursive=true" in self.path))
        elif match["kind"] != "resolve":
            names = [{"rfilename": path} for path in files]
            facts = {"id": name.partition("/")[2], "sha": self.hub.revision}
            self.json({**facts, "siblings": names, "private": False, "tags": []})
        elif match["path"] not in files:
            self.error(404, "EntryNotFound")
        else:
            self.file(files[match["path"]])

    do_HEAD = do_GET

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

    def error(self, status: int, code: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": code} if code else {}
        self.answer(status, b"{}", headers)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        facts = {"X-Repo-Commit": self.hub.revision, "Content-Length": str(len(body))}
        for name, value in {**facts, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
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
    return hashlib.sha1(content).hexdigest()
