"""Driver of headless Chromium over a pipe, by the DevTools protocol.

It opens no port and needs no package: the browser's file descriptors 3 and 4 carry JSON objects,
each followed by a zero byte.
"""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
SECONDS = 60.0


def find_chromium() -> str | None:
    """Return the command of the installed Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one page, which records the page's requests and console errors.

    Attributes:
        requests: the addresses that the page requested, in order.
        complaints: its console's errors and warnings, and its uncaught exceptions.
    """

    def __init__(self, command: str, profile: Path) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._last_id = 0
        self._unread = b""
        self._session = ""

        into_browser, self._write_end = os.pipe()
        self._read_end, out_of_browser = os.pipe()
        # The shell moves both pipes to descriptors 3 and 4, where the browser expects them.
        script = 'exec "$@" 3<&$IN 4>&$OUT'
        words = [command, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        environment = {**os.environ, "IN": str(into_browser), "OUT": str(out_of_browser)}
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f"eval '{script}'", "sh", *words],
            env=environment,
            pass_fds=(into_browser, out_of_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(into_browser)
        os.close(out_of_browser)
        self._open_page()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.call("Browser.close", of_page=False)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write_end)
        os.close(self._read_end)

    def _open_page(self) -> None:
        target = self.call("Target.createTarget", of_page=False, url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", of_page=False, targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, *, of_page: bool = True, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if of_page:
            message["sessionId"] = self._session
        os.write(self._write_end, json.dumps(message).encode() + b"\0")

        while True:
            answer = self._next_message()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next_message(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read_end], [], [], end - time.monotonic())
            assert ready, f"the browser said nothing for {SECONDS:.0f} s"
            received = os.read(self._read_end, 1 << 20)
            assert received, "the browser ended"
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        """Record a request, an error or a warning, and ignore other events."""
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str([each.get("value") for each in params["args"]]))
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(details.get("exception", details).get("description", ""))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])

    # -- a reader's actions ------------------------------------------------------------------------

    def open(self, page: Path) -> None:
        """Load a file afresh, and wait until it is complete."""
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, after awaiting a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true; fail if the page complains."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, f"{condition} is not true"
            assert not self.complaints, self.complaints
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """Return the text of the first element that a selector finds."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def look(self, width: int) -> None:
        """Set the width of the viewport in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
