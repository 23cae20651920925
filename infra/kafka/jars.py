"""Kafka's jars: pinned by jars.sha256, and fetched into a cache on first use, by download or else by Maven.

`python -m infra.kafka.jars` pins them again, after a change of pom.xml: it needs Maven.
"""

import hashlib
import logging
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from textwrap import shorten
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, OpenerDirector, build_opener

from infra.kafka.files import FileLock, LockedError
from infra.kafka.settings import BrokerSettings
from infra.progress import bar
from streams.kafka.faults import BrokerError

POM = Path(__file__).with_name("pom.xml")
_LONGEST_REASON = 160
"""Most characters of an error of Maven, which has all of its causes in one line."""
_NAMES_OF_CENTRAL = {"central", "*", "external:*"}


PINS = Path(__file__).with_name("jars.sha256")
_AT_ONCE = 4
_ATTEMPTS = 3
_PAUSE_S = 0.5
# Longest time without a byte before a connection is closed.
_STALL_S = 10.0
_CHUNK_BYTES = 64 * 1024
# The largest of the jars has 7 MiB.
_MOST_BYTES = 64 * 1024 * 1024
_CENTRAL = "https://repo.maven.apache.org/maven2"
_STAGING_PREFIX = ".staging-"


class MavenError(Exception):
    """A failure of Maven; the message is the first error that it printed."""


def mirror_of_central(settings: Path) -> str | None:
    """Return the mirror of Maven Central in Maven's user settings; None without one.

    A mirror whose address has a variable or a password in it is left to Maven.

    Raises:
        BrokerError: the file is not valid XML.
    """
    if not settings.is_file():
        return None
    try:
        mirrors = ElementTree.parse(settings).iterfind("{*}mirrors/{*}mirror")
    except ElementTree.ParseError as error:
        raise BrokerError(
            f"{settings} is no XML ({error}): correct it, or set MILLRACE_MAVEN_REPOSITORY to a repository"
        ) from None
    for mirror in mirrors:
        patterns = {each.strip() for each in mirror.findtext("{*}mirrorOf", "").split(",")}
        url = mirror.findtext("{*}url", "").strip()
        if patterns & _NAMES_OF_CENTRAL and "!central" not in patterns and url and not {"$", "@"} & set(url):
            return url
    return None


def find_maven() -> str | None:
    """Return the command `mvn`; None if Maven is not installed."""
    return shutil.which("mvn")


def copy_jars(maven: str, folder: Path, timeout_s: float | None, *, by_coordinates: bool = False) -> None:
    """Copy the jars of pom.xml into `folder` with Maven: flat, or in the layout of a repository.

    Raises:
        MavenError: Maven fails or takes too long.
    """
    command = [
        maven,
        "--batch-mode",
        "--quiet",
        "--strict-checksums",
        f"--file={POM}",
        "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={folder}",
        f"-Dmdep.useRepositoryLayout={str(by_coordinates).lower()}",
    ]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise MavenError(f"not within {error.timeout:.0f} s") from None
    if answer.returncode != 0:
        raise MavenError(_first_error(answer.stdout))


def _first_error(output: str) -> str:
    # Colour codes may precede the mark, even in batch mode.
    errors = (line.partition("[ERROR] ")[2].removesuffix(" -> [Help 1]") for line in output.splitlines())
    return shorten(next(filter(None, errors), "no reason given"), _LONGEST_REASON, placeholder=" ...")


@dataclass(frozen=True)
class Jar:
    """A file of a Maven repository, with its digest."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
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


_log = logging.getLogger(__name__)


def kafka_version() -> str:
    """Return the Kafka version that pom.xml pins."""
    version = ElementTree.parse(POM).findtext("{*}properties/{*}kafka.version")
    if version is None:
        raise BrokerError(f"{POM} has no property kafka.version: restore the file")
    return version


def kafka_jars(settings: BrokerSettings) -> Path:
    """Return the folder with Kafka's jars. Fetch them on first use, and again if one is damaged.

    The folder is renamed to its name when every jar in it has been compared with its pin. Each use compares
    them again, which takes 0.2 s.

    Raises:
        BrokerError: the jars are not in the cache, and cannot be fetched in time or stored there.
    """
    jars = settings.cache_dir / _folder_name()
    if _are_whole(jars):
        return jars
    try:
        settings.cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(settings.cache_dir / "lock").held(settings.broker_download_timeout_s):
            if not _are_whole(jars):
                if jars.exists():
                    _log.warning("Kafka's jars in %s are damaged, and are fetched again", jars)
                    shutil.rmtree(jars)
                _fetch(jars, settings)
    except LockedError as error:
        raise BrokerError(
            f"Process {error.holder} has been fetching Kafka into {settings.cache_dir} for more than "
            f"{settings.broker_download_timeout_s:g} s: see whether it is stuck"
        ) from error
    except OSError as error:
        raise BrokerError(
            f"Cannot keep Kafka's jars in {settings.cache_dir} ({error.strerror}): "
            "set MILLRACE_CACHE_DIR to a folder that can be written and has 50 MB free"
        ) from error
    return jars


def _are_whole(jars: Path) -> bool:
    try:
        check_jars(pinned_jars(), jars)
    except (DownloadError, OSError):
        return False
    return True


def _folder_name() -> str:
    # The digest distinguishes sets of jars with equal Kafka versions and different pins.
    return f"kafka-{kafka_version()}-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:8]}"


def _fetch(jars: Path, settings: BrokerSettings) -> None:
    # The caller holds the cache's lock, so files in staging are of a process that was killed.
    for leftover in jars.parent.glob(f"{_STAGING_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix=_STAGING_PREFIX) as staging:
        _gather(Path(staging), settings).rename(jars)


def _gather(staging: Path, settings: BrokerSettings) -> Path:
    """Fetch all jars into a folder of `staging`, by download or, where that fails, by an installed Maven."""
    named = settings.maven_repository
    repository = named or mirror_of_central(Path.home() / ".m2" / "settings.xml") or _CENTRAL
    deadline_s = time.monotonic() + settings.broker_download_timeout_s
    try:
        return _download(staging / "downloaded", repository, settings.broker_download_timeout_s)
    except DeadlineError as error:
        raise BrokerError(
            f"Kafka {kafka_version()} did not arrive from {repository} within "
            f"{settings.broker_download_timeout_s:g} s ({error}): "
            "check the network, or raise MILLRACE_BROKER_DOWNLOAD_TIMEOUT_S"
        ) from None
    except DownloadError as error:
        reason = str(error)
    # A repository that the user names is the only one to use.
    maven = None if named else find_maven()
    if maven is not None:
        try:
            return _copy(staging / "copied", maven, deadline_s - time.monotonic())
        except (MavenError, DownloadError) as error:
            reason += f"; nor by Maven: {error}"
    raise BrokerError(
        f"Kafka {kafka_version()} cannot be fetched from {repository} ({reason}): "
        "check the network, or set MILLRACE_MAVEN_REPOSITORY to a mirror"
    )


def _download(folder: Path, repository: str, timeout_s: float) -> Path:
    folder.mkdir()
    jars = pinned_jars()
    task = f"Kafka {kafka_version()}, {len(jars)} jars to be fetched"
    if not sys.stderr.isatty():
        sys.stderr.write(f"{task}\n")
    with bar(task) as done:
        download_jars(jars, repository, folder, timeout_s, done)
    return folder


def _copy(folder: Path, maven: str, timeout_s: float) -> Path:
    copy_jars(maven, folder, timeout_s)
    check_jars(pinned_jars(), folder)
    return folder


def main() -> None:
    """Pin the jars that Maven resolves, in the format of `sha256sum`; the first line has pom.xml's digest."""
    maven = find_maven()
    if maven is None:
        sys.exit("pinning the jars needs Maven: install it, so that mvn is on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        try:
            copy_jars(maven, Path(folder), timeout_s=None, by_coordinates=True)
        except MavenError as error:
            sys.exit(f"Maven could not fetch the jars: {error}")
        paths = sorted(Path(folder).rglob("*.jar"))
        lines = [f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in paths]
    PINS.write_text("".join([f"# {_sha256(POM)}  {POM.name}\n", *lines]), encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
