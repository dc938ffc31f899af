"""The hub, asked with patience.

Whatever `datasets`, `huggingface_hub` and `transformers` ask of the hub goes through one HTTP client, which
huggingface_hub lets us replace. Ours repeats a request whose failure may pass (no connection, silence, half an answer,
408, 429, 5xx), with waits that double. A request only reads, so repeating it is exact: the reader above sees its bytes
once, and no document is missed or comes twice. It also takes the place of the libraries' own retries and timeouts,
which are long, silent and several deep.

Once patience has ended, every later request fails at once, so that the libraries end soon whatever they make of the
failure; `Hub.check` then says what happened even where they passed over it.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

from huggingface_hub import constants, errors, get_session, get_token, set_client_factory
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # whichever HTTP library it uses

from rope_exp.system.errors import ConfigError, DataError, first_line

TIMEOUT_S = 10.0  # of connecting, and of silence
FIRST_WAIT_S = 1.0  # before the second attempt; doubles with each further one
PATIENCE_S = (
    100.0  # with one request, after it first failed; the last attempt begins at the latest then
)
ABSENT = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)  # or gated
PASSING = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)


class Hub:
    """What became of the requests of this process since `connect`.

    Attributes:
        refusal: what the hub answered when patience ended; None so far.
    """

    def __init__(self, log: TextIO) -> None:
        self.refusal: str | None = None
        self._log = log

    @classmethod
    def connect(cls, log: TextIO) -> Self:
        """Let all further requests of this process be made with patience; `log` gets a line a failure."""
        # Requests that are no part of the data could fail alone, and Xet's transfers know no client of ours.
        constants.HF_HUB_DISABLE_TELEMETRY = constants.HF_HUB_DISABLE_XET = True
        hub, hooks = cls(log), get_session().event_hooks  # the hooks obey HF_HUB_OFFLINE
        set_client_factory(lambda: _Client(hub, event_hooks=hooks, follow_redirects=True))
        return hub

    def check(self) -> None:
        """Raise HubError if patience has ended."""
        if self.refusal is not None:
            raise HubError(self.refusal)

    def wait(self, failure: str, num_failures: int, elapsed_s: float, least_s: int) -> None:
        """Wait before a request is repeated, at least `least_s`; or end patience, `elapsed_s` after it first failed."""
        if elapsed_s >= PATIENCE_S:
            self.refusal = (
                f"the hub failed {num_failures} times in {elapsed_s:.0f} s, at last with {failure}"
            )
            self.check()
        wait_s = min(max(FIRST_WAIT_S * 2 ** (num_failures - 1), least_s), PATIENCE_S - elapsed_s)
        print(
            f"hub: {failure}; attempt {num_failures + 1} in {wait_s:.1f} s",
            file=self._log,
            flush=True,
        )
        time.sleep(wait_s)

    def judge(self, error: BaseException) -> tuple[str, bool]:
        """What a library's error means, and whether the user's key is at fault: the hub has no such thing for them."""
        if self.refusal is not None:
            return f"{self.refusal}; the same command tries again", False
        answer: BaseException | None = error
        while answer is not None and not isinstance(answer, errors.HfHubHTTPError):
            answer = answer.__cause__ or answer.__context__
        absent = isinstance(answer, ABSENT)
        return plain(error if answer is None or absent else answer), absent

    @contextmanager
    def asking(
        self, key: str, value: str | None, doing: str, mistakes: tuple[type[Exception], ...]
    ) -> Iterator[None]:
        """Say in one sentence what a library raises while it asks the hub for `key=value`.

        Raises:
            ConfigError: one of `mistakes`, or the hub has no such thing for this user.
            DataError: anything else.
        """
        try:
            yield
            self.check()
        except (ConfigError, MemoryError):
            raise
        except Exception as error:
            said, absent = self.judge(error)
            if absent or (self.refusal is None and isinstance(error, mistakes)):
                raise ConfigError(key, value, said) from None
            raise DataError(f"{key}={value}: {doing}: {said}") from None


class HubError(Exception):
    """Patience has ended. None of the libraries' own kinds, so that they neither retry nor fall back."""


class _Client(httpx.Client):
    def __init__(self, hub: Hub, **options: Any) -> None:
        super().__init__(**options)
        self._hub = hub

    def send(
        self, request: httpx.Request, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        """Send until there is an answer that will not pass, and read all of it (`stream` or not: it may break off)."""
        request.extensions = {**request.extensions, "timeout": httpx.Timeout(TIMEOUT_S).as_dict()}
        asked = f"{request.method} {request.url.netloc.decode()}{request.url.path}"  # no query: it may hold a signature
        failed_at: list[float] = []  # a slow answer that breaks off has not used up patience
        while True:
            self._hub.check()
            least_s = 0
            try:
                response = super().send(request, **options)
                failure = _failure(request, response)
                if failure is None:
                    return response
                after = response.headers.get("retry-after", "")
                least_s = int(after) if re.fullmatch("[0-9]{1,6}", after) else 0
            except PASSING as error:
                silent = isinstance(error, httpx.TimeoutException)
                failure = f"silence for {TIMEOUT_S:g} s" if silent else first_line(error)
            failed_at.append(time.monotonic())
            self._hub.wait(
                f"{failure} ({asked})", len(failed_at), failed_at[-1] - failed_at[0], least_s
            )


def _failure(request: httpx.Request, response: httpx.Response) -> str | None:
    """What is wrong with an answer that may be right the next time."""
    if response.status_code in (408, 429) or response.status_code >= 500:
        return f"{response.status_code} {response.reason_phrase}"
    part = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    if part and response.is_success and "content-encoding" not in response.headers:
        num_bytes = int(part[2]) - int(part[1]) + 1
        if (
            len(response.content) != num_bytes
        ):  # the readers above would take it for the end of the file
            return f"{len(response.content)} bytes instead of {num_bytes}"
    return None


def plain(error: BaseException) -> str:
    """An error's message in one line, without the user's token, which a server may send back."""
    text = str(error)
    token = get_token()
    return first_line(
        Exception(text.replace(token, "<token>") if token else text) if text else error
    )
