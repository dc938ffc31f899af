"""The hub, asked with patience, and the datasets that it holds.

Whatever `datasets`, `huggingface_hub` and `transformers` ask of the hub goes through one HTTP
client, which huggingface_hub lets us replace. Ours repeats a request whose failure may pass (no
connection, silence, half an answer, 408, 429, 5xx), with waits that double. A request only reads,
so repeating it is exact: the reader above sees its bytes once, and no document is missed or comes
twice. It also takes the place of the libraries' own retries and timeouts, which are long, silent
and several deep.

Once patience has ended, every later request fails at once, so that the libraries end soon
whatever they make of the failure; `Hub.check` then says what happened even where they passed over
it.
"""

import functools
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from huggingface_hub import (
    HfApi,
    constants,
    errors,
    get_session,
    get_token,
    set_client_factory,
)
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # its own choice of library

from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import (
    Corpus,
    choose_sides,
    column_texts,
    load_datasets,
    no_text,
    path_error,
)
from rope_exp.data.parquet import ROWS
from rope_exp.system.errors import ConfigError, DataError, first_line

TIMEOUT_S = 10.0  # of connecting, and of silence
FIRST_WAIT_S = 1.0  # before the second attempt; it doubles with each further one
PATIENCE_S = 100.0  # from the first failure of a request to its last attempt

# There is no such thing for this user, who may lack the right to see it.
ABSENT = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
PASSING = (httpx.NetworkError, httpx.RemoteProtocolError)


@functools.cache
def newest_commit(path: str, revision: str | None) -> str:
    """Ask the hub which commit a branch or a tag (None: the main branch) of a dataset names.

    A process asks once, so that all runs of a sweep read the same commit.

    Raises:
        ConfigError: there is no such dataset or revision for this user.
        DataError: the hub did not answer.
    """
    hub = Hub(sys.stderr)
    doing = "its newest commit could not be asked for (data.revision=COMMIT asks for none)"
    with hub.asking(path, doing, mistakes=(ValueError,)):
        return str(HfApi().dataset_info(path, revision=revision).sha)


def open_dataset(data: DataConfig) -> Corpus:
    """Open a dataset of the hub as streams.

    Raises:
        ConfigError: data.path, data.subset or data.text_column cannot be.
        DataError: the hub did not answer.
    """
    datasets = load_datasets()
    # Hints of another server and a count of downloads are no part of the data, and could fail.
    datasets.config.USE_PARQUET_EXPORT = False
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False

    hub = Hub(sys.stderr)
    # A subset that there is not is a ValueError.
    absent = (datasets.exceptions.DatasetNotFoundError, ValueError)
    with (
        hub.asking(data.path, "the dataset could not be opened", mistakes=absent),
        # Where the hub refuses, the library reads what it finds in its cache, of whatever
        # revision: it is given an empty one.
        TemporaryDirectory(prefix="rope_exp-") as empty,
    ):
        streams = datasets.load_dataset(
            data.path, data.subset, revision=data.revision, streaming=True, cache_dir=empty
        )

    def read(stream: Any) -> Iterator[str]:
        # A column of mixed types is declared "Json" and arrives as strings of JSON.
        kind = (stream.features or {}).get(data.text_column)
        if "Json" in str(kind):
            raise no_text(data, kind)

        tables = stream.with_format("arrow").iter(batch_size=ROWS)
        with hub.asking(data.path, "reading stopped"):
            for text in column_texts(tables, data):
                hub.check()
                yield text

    facts = {"path": data.path, "subset": data.subset, "revision": data.revision}
    return Corpus(data, choose_sides(data, streams), read, facts=facts)


class Hub(httpx.Client):
    """The client of all requests of this process from now on, and what became of them.

    Attributes:
        refusal: what the hub answered when patience ended; None so far.
    """

    def __init__(self, log: TextIO) -> None:
        """Take the place of the client before; `log` gets a line a failure."""
        # The hooks obey HF_HUB_OFFLINE.
        super().__init__(event_hooks=get_session().event_hooks, follow_redirects=True)
        self.refusal: str | None = None
        self._log = log
        set_client_factory(lambda: self)

        # Requests that are no part of the data could fail alone, and Xet's transfers know no
        # client of ours.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        constants.HF_HUB_DISABLE_XET = True

    def check(self) -> None:
        """Raise HubError if patience has ended."""
        if self.refusal is not None:
            raise HubError(self.refusal)

    def judge(self, error: BaseException) -> tuple[str, bool]:
        """Say what a library's error means, and whether the hub has no such thing for this user."""
        if self.refusal is not None:
            return f"{self.refusal}; the same command tries again", False

        answer: BaseException | None = error
        while answer is not None and not isinstance(answer, errors.HfHubHTTPError):
            answer = answer.__cause__ or answer.__context__
        absent = isinstance(answer, ABSENT)
        return _plain(error if answer is None or absent else answer), absent

    @contextmanager
    def asking(
        self, path: str | None, doing: str, mistakes: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Say in one sentence what a library raises while it asks the hub for the dataset `path`.

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
                raise path_error(path, said) from None
            raise DataError(f"data.path={path}: {doing}: {said}") from None

    def send(
        self, request: httpx.Request, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        """Send until there is an answer that will not pass, and read all of it.

        It is read even where `stream` asks for less: an answer may break off later.
        """
        request.extensions = {**request.extensions, "timeout": httpx.Timeout(TIMEOUT_S).as_dict()}
        # Without the query, which may hold a signature.
        asked = f"{request.method} {request.url.netloc.decode()}{request.url.path}"
        failed_at: list[float] = []

        while True:
            self.check()
            least_s = 0
            try:
                response = super().send(request, **options)
                failure = _failure(request, response)
                if failure is None:
                    return response
                after = response.headers.get("retry-after", "")
                if re.fullmatch("[0-9]{1,6}", after):
                    least_s = int(after)
            except httpx.TimeoutException:
                failure = f"silence for {TIMEOUT_S:g} s"
            except PASSING as error:
                failure = first_line(error)

            failed_at.append(time.monotonic())
            self._wait(f"{failure} ({asked})", failed_at, least_s)

    def _wait(self, failure: str, failed_at: list[float], least_s: int) -> None:
        """Wait before a request is repeated, or end patience.

        Args:
            failure: what the request came to.
            failed_at: when it failed, each time so far. A slow answer that breaks off has not
                used up patience: it begins with the first failure.
            least_s: what the hub asked us to wait at least.
        Raises:
            HubError: patience has ended.
        """
        num_failures = len(failed_at)
        elapsed_s = failed_at[-1] - failed_at[0]
        if elapsed_s >= PATIENCE_S:
            self.refusal = (
                f"the hub failed {num_failures} times in {elapsed_s:.0f} s, at last with {failure}"
            )
            self.check()

        wait_s = max(FIRST_WAIT_S * 2 ** (num_failures - 1), least_s)
        wait_s = min(wait_s, PATIENCE_S - elapsed_s)
        line = f"hub: {failure}; attempt {num_failures + 1} in {wait_s:.1f} s"
        print(line, file=self._log, flush=True)
        time.sleep(wait_s)


class HubError(Exception):
    """Patience has ended.

    It is none of the libraries' own kinds, so that they neither retry nor fall back.
    """


def _failure(request: httpx.Request, response: httpx.Response) -> str | None:
    """Say what is wrong with an answer that may be right the next time."""
    if response.status_code in (408, 429) or response.status_code >= 500:
        return f"{response.status_code} {response.reason_phrase}"

    # The readers above would take a part that is too short for the end of the file.
    part = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    if part and response.is_success and "content-encoding" not in response.headers:
        num_bytes = int(part[2]) - int(part[1]) + 1
        if len(response.content) != num_bytes:
            return f"{len(response.content)} bytes instead of {num_bytes}"
    return None


def _plain(error: BaseException) -> str:
    """Return an error's message in one line, without the token, which a server may send back."""
    text = str(error)
    token = get_token()
    if token and token in text:
        error = Exception(text.replace(token, "<token>"))
    return first_line(error)
