"""Kafka's jars, pinned by jars.sha256, and their download from a Maven repository."""

import hashlib
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, OpenerDirector, build_opener

PINS = Path(__file__).with_name("jars.sha256")
_AT_ONCE = 4
_ATTEMPTS = 3
_PAUSE_S = 0.5
# Longest time without a byte before a connection is closed.
_STALL_S = 10.0
_CHUNK_BYTES = 64 * 1024
# The largest of the jars has 7 MiB.
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Jar:
    """A file of a Maven repository, with its digest."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name without its folders."""
        return self.path.rpartition("/")[2]


class DownloadError(Exception):
    """A jar that cannot be downloaded, or is damaged. The message has its name and the reason."""


class DeadlineError(DownloadError):
    """A download that took too long."""


class _TransientError(DownloadError):
    """A fault that may be over at the next attempt."""


def pinned_jars() -> list[Jar]:
    """Return all jars that the broker needs, as the file of pins lists them."""
    lines = (line.split() for line in PINS.read_text(encoding="utf-8").splitlines() if line[0] != "#")
    return [Jar(path, sha256) for sha256, path in lines]


def check_jars(jars: list[Jar], folder: Path) -> None:
    """Compare the jars in `folder` with their pins.

    Raises:
        DownloadError: one is missing or differs.
    """
    for jar in jars:
        if not (folder / jar.name).is_file():
            raise DownloadError(f"{jar.name} is missing")
        _check(jar, (folder / jar.name).read_bytes())


def download_jars(
    jars: list[Jar], repository: str, folder: Path, timeout_s: float, done: Callable[[float], None]
) -> None:
    """Download jars from a Maven repository into `folder`, several at once.

    `done` gets the downloaded part after each jar.
    Proxies and certificates are those of the environment (`https_proxy`, `SSL_CERT_FILE`, ...).

    Raises:
        DownloadError: a jar cannot be downloaded or is damaged, even after further attempts.
        DeadlineError: the download takes longer than `timeout_s`.
        OSError: the folder cannot be written.
    """
    download = _Download(repository, folder, time.monotonic() + timeout_s)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        fetched = [pool.submit(download.fetch, jar) for jar in jars]
        try:
            for count, each in enumerate(as_completed(fetched), 1):
                each.result()
                done(count / len(jars))
        finally:
            download.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)


class _Download:
    def __init__(self, repository: str, folder: Path, deadline_s: float) -> None:
        self._repository = repository.rstrip("/")
        self._folder = folder
        self._deadline_s = deadline_s
        # Shared, because loading the certificates takes as long as a small jar.
        self._opener: OpenerDirector = build_opener(HTTPSHandler(context=ssl.create_default_context()))
        self.stopped = threading.Event()

    def fetch(self, jar: Jar) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                content = self._read(jar)
                _check(jar, content)
                break
            except _TransientError:
                if attempt == _ATTEMPTS or self.stopped.wait(_PAUSE_S * attempt):
                    raise
        (self._folder / jar.name).write_bytes(content)

    def _read(self, jar: Jar) -> bytes:
        content = bytearray()
        try:
            with self._opener.open(f"{self._repository}/{jar.path}", timeout=_STALL_S) as response:
                while chunk := response.read1(_CHUNK_BYTES):
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        raise DownloadError(f"{jar.name} has more than {_MOST_BYTES} bytes")
                    self._check_time(jar)
        except HTTPError as error:
            kind = DownloadError if error.code in (401, 403, 404, 407, 410) else _TransientError
            raise kind(f"{jar.name}: HTTP status {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:
            self._check_time(jar)
            raise _TransientError(f"{jar.name}: {_reason(error)}") from None
        return bytes(content)

    def _check_time(self, jar: Jar) -> None:
        if self.stopped.is_set() or time.monotonic() > self._deadline_s:
            raise DeadlineError(f"no time is left for {jar.name}")


def _check(jar: Jar, content: bytes) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != jar.sha256:
        raise _TransientError(f"{jar.name} is damaged: SHA-256 {found[:12]}... and not {jar.sha256[:12]}...")


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__
