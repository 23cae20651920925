"""Pinning of Kafka's jars: resolves pom.xml with Maven, and writes paths and SHA-256 to jars.sha256."""

import hashlib
import sys
import tempfile
from pathlib import Path

from infra.kafka.jars import PINS
from infra.kafka.maven import POM, MavenError, copy_jars, find_maven


def main() -> None:
    """Rewrite the file in the format of `sha256sum`; its first line has the digest of pom.xml."""
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
