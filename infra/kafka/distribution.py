"""Kafka's jars, fetched by Maven as pinned in pom.xml and cached, and the Java runtime that runs them."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from infra.kafka.file_lock import FileLock, LockedError
from infra.kafka.settings import BrokerSettings
from streams.kafka.faults import BrokerError

OLDEST_JAVA = 17
_VERSION_TIMEOUT_S = 30


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, or else of the PATH.

    Raises:
        BrokerError: there is none, it does not run, or it is older than Java 17.
    """
    java = _java_of_home() or shutil.which("java")
    if java is None:
        raise BrokerError(
            f"No Kafka broker: install Java {OLDEST_JAVA} or newer, start Docker (needs the extra `docker`), "
            "or set MILLRACE_BOOTSTRAP_SERVERS to a running broker"
        )
    version = _major_version(java)
    if version < OLDEST_JAVA:
        raise BrokerError(
            f"{java} is Java {version}, and Kafka needs {OLDEST_JAVA} or newer: "
            "install it and point JAVA_HOME or PATH to it"
        )
    return Path(java)


def parse_major_version(banner: str) -> int | None:
    """Read the major version from what `java -version` prints; Java 8 calls itself 1.8."""
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(match[1]) if match else None


def _java_of_home() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else None


def _major_version(java: str) -> int:
    try:
        # The banner goes to standard error.
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerError(f"{java} does not run ({error}): install Java {OLDEST_JAVA} or newer") from error
    version = parse_major_version(answer.stderr)
    if version is None:
        raise BrokerError(
            f"{java} -version names no version (exit status {answer.returncode}): "
            f"install Java {OLDEST_JAVA} or newer"
        )
    return version


_POM = Path(__file__).with_name("pom.xml")
_STAGING_PREFIX = ".staging-"


def kafka_version() -> str:
    """The Kafka version that pom.xml pins."""
    version = ElementTree.parse(_POM).findtext("{*}properties/{*}kafka.version")
    if version is None:
        raise BrokerError(f"{_POM} has no property kafka.version: restore the file")
    return version


def kafka_jars(settings: BrokerSettings) -> Path:
    """Return the folder with Kafka's jars, fetched on first use.

    The folder appears under its name in one rename, when it is complete, so an existing one can be trusted.

    Raises:
        BrokerError: the jars are not in the cache and Maven is missing, fails or takes too long.
    """
    jars = settings.cache_dir / _folder_name()
    if jars.is_dir():
        return jars
    try:
        settings.cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(settings.cache_dir / "lock").held(settings.broker_download_timeout_s):
            if not jars.is_dir():
                _fetch(jars, settings.broker_download_timeout_s)
    except LockedError as error:
        raise BrokerError(
            f"Process {error.holder} has been fetching Kafka into {settings.cache_dir} for more than "
            f"{settings.broker_download_timeout_s:g} s: see whether it is stuck"
        ) from error
    except OSError as error:
        raise BrokerError(
            f"Cannot keep Kafka's jars in {settings.cache_dir} ({error.strerror}): "
            "set MILLRACE_CACHE_DIR to a folder that can be written"
        ) from error
    return jars


def _folder_name() -> str:
    # The digest tells two sets of jars apart that share a Kafka version, when another pin has moved.
    return f"kafka-{kafka_version()}-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:8]}"


def _fetch(jars: Path, timeout_s: float) -> None:
    # The caller holds the cache's lock: what lies in staging was left by a process that was killed.
    for leftover in jars.parent.glob(f"{_STAGING_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix=_STAGING_PREFIX) as staging:
        complete = Path(staging) / "jars"
        _run_maven(complete, timeout_s)
        complete.rename(jars)


def _run_maven(output_dir: Path, timeout_s: float) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerError(
            f"Kafka {kafka_version()} is not in the cache {output_dir.parent.parent}: install Maven (mvn) "
            "to fetch it, start Docker, or set MILLRACE_BOOTSTRAP_SERVERS to a running broker"
        )
    command = [
        maven,
        "--batch-mode",
        "--quiet",
        "--strict-checksums",
        f"--file={_POM}",
        "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={output_dir}",
    ]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(
            f"Maven did not fetch Kafka {kafka_version()} within {timeout_s:g} s: "
            "check the network, or raise MILLRACE_BROKER_DOWNLOAD_TIMEOUT_S"
        ) from error
    if answer.returncode != 0:
        reason = _first_error(answer.stdout)
        raise BrokerError(
            f"Maven could not fetch Kafka {kafka_version()} ({reason}): "
            "check the network and Maven's settings"
        )


def _first_error(output: str) -> str:
    # Colour codes may come before the mark, even in batch mode.
    errors = (line.partition("[ERROR] ")[2].removesuffix(" -> [Help 1]") for line in output.splitlines())
    return next(filter(None, errors), "no reason given")
