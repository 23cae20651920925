"""Use of Maven: the mirror in its settings, and its command, if it is installed."""

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from textwrap import shorten

from streams.kafka.faults import BrokerError

POM = Path(__file__).with_name("pom.xml")
_LONGEST_REASON = 160
"""Most characters of an error of Maven, which has all of its causes in one line."""
_CENTRAL = {"central", "*", "external:*"}


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
        if patterns & _CENTRAL and "!central" not in patterns and url and not {"$", "@"} & set(url):
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
