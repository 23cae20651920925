"""Cache of Kafka's jars, which is filled on first use: by download, or else by Maven."""

import hashlib
import logging
import shutil
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from infra.kafka.file_lock import FileLock, LockedError
from infra.kafka.jars import PINS, DeadlineError, DownloadError, check_jars, download_jars, pinned_jars
from infra.kafka.maven import POM, MavenError, copy_jars, find_maven, mirror_of_central
from infra.kafka.settings import BrokerSettings
from infra.progress import bar
from streams.kafka.faults import BrokerError

_CENTRAL = "https://repo.maven.apache.org/maven2"
_STAGING_PREFIX = ".staging-"

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
