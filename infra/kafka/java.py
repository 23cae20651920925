"""The Java runtime that runs the local broker."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from infra.kafka.errors import BrokerError

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
            f"No Kafka broker: install Java {OLDEST_JAVA} or newer, start Docker, "
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
