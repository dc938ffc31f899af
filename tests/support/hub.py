"""A stand-in for the Hugging Face hub on localhost: repositories, their trees and files."""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

REPOSITORY = "(?:/api)?/((?:(?:datasets|models)/)?[^/]+/[^/]+)"
PATHS = re.compile(REPOSITORY + r"(?:/(revision|tree|resolve)/\w+/?(.*))?")


class Hub:
    """`faults` are the HTTP status and error code of requests that match a regex."""

    revision = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.faults: dict[str, tuple[int, str]] = {}
        self.requests: list[str] = []
        handler = type("HubHandler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        for pattern, fault in self.faults.items():
            if re.search(pattern, f"{method} {path}"):
                return fault
        match = PATHS.fullmatch(unquote(urlsplit(path).path))
        assert match is not None, path
        name, kind, below = match.groups()
        files = self.repositories.get(name if name.count("/") == 2 else f"models/{name}")
        if files is None:
            # Without credentials, the real hub answers 401 for an unknown repository.
            return 401, "RepoNotFound"
        if kind == "resolve":
            return (200, files[below]) if below in files else (404, "EntryNotFound")
        if kind == "tree":
            facts = {"type": "file", "oid": "0" * 40}
            return 200, [{**facts, "path": name, "size": len(files[name])} for name in files]
        siblings = [{"rfilename": path} for path in files]
        return 200, {"id": name.partition("/")[2], "sha": self.revision, "siblings": siblings}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path} {self.headers['Authorization']}")
        status, body = self.hub.answer(self.command, self.path)
        headers = {"X-Repo-Commit": self.hub.revision}
        if isinstance(body, str):
            headers |= {"X-Error-Code": body, "X-Error-Message": body}
            body = b"{}"
        elif isinstance(body, bytes):
            headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
            if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or ""):
                status = 206
                body = body[int(part[1]) : int(part[2] or len(body)) + 1]
        else:
            body = json.dumps(body).encode()

        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET
