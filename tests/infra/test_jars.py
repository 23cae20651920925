"""Kafka's jars: their pins, and the mirror that they come from."""

import hashlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.kafka.jars import (
    PINS,
    POM,
    DownloadError,
    Jar,
    check_jars,
    kafka_version,
    mirror_of_central,
    pinned_jars,
)
from infra.kafka.settings import BrokerSettings
from streams.kafka.faults import BrokerError

MIRROR = "https://maven.example/all"


def test_pins_match_the_pom() -> None:
    """After a change of pom.xml run `make jars`."""
    assert PINS.read_text().startswith(f"# {hashlib.sha256(POM.read_bytes()).hexdigest()}  pom.xml\n")
    assert f"kafka_2.13-{kafka_version()}.jar" in {jar.name for jar in pinned_jars()}


def test_jars_from_elsewhere_are_compared_with_their_pins(tmp_path: Path) -> None:
    jar = Jar("org/example/one/1/one-1.jar", hashlib.sha256(b"one").hexdigest())
    with pytest.raises(DownloadError, match=r"^one-1\.jar is missing$"):
        check_jars([jar], tmp_path)
    (tmp_path / "one-1.jar").write_bytes(b"two")
    with pytest.raises(DownloadError, match=r"^one-1\.jar is damaged: SHA-256 3fc4ccfe"):
        check_jars([jar], tmp_path)
    (tmp_path / "one-1.jar").write_bytes(b"one")
    check_jars([jar], tmp_path)


@pytest.mark.parametrize(
    ("mirror_of", "url", "found"),
    [
        ("*", MIRROR, MIRROR),
        ("central", f" {MIRROR}\n", MIRROR),
        ("internal, external:*", MIRROR, MIRROR),
        ("internal", MIRROR, None),
        ("*, !central", MIRROR, None),
        ("*", "", None),
        ("*", "https://${env.MAVEN_HOST}/all", None),
        ("*", "https://me:secret@maven.example/all", None),
    ],
)
def test_the_mirror_of_mavens_settings_is_found(
    tmp_path: Path, mirror_of: str, url: str, found: str | None
) -> None:
    mirror = f"<mirror><mirrorOf>{mirror_of}</mirrorOf><url>{url}</url></mirror>"
    settings = tmp_path / "settings.xml"
    settings.write_text(f"<settings><mirrors>{mirror}</mirrors></settings>")
    assert mirror_of_central(settings) == found
    namespace = 'xmlns="http://maven.apache.org/SETTINGS/1.2.0"'
    settings.write_text(f"<settings {namespace}><mirrors>{mirror}</mirrors></settings>")
    assert mirror_of_central(settings) == found


def test_no_settings_of_maven_name_no_mirror(tmp_path: Path) -> None:
    assert mirror_of_central(tmp_path / "settings.xml") is None


def test_invalid_maven_settings_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "settings.xml").write_text("<settings>")
    with pytest.raises(BrokerError, match=r"^.*settings\.xml is no XML \(.*\): correct it, or set"):
        mirror_of_central(tmp_path / "settings.xml")


@pytest.mark.parametrize(
    "url", ["maven.example/all", "ftp://maven.example", "https://me:secret@maven.example"]
)
def test_a_repository_is_an_address_without_a_password(url: str) -> None:
    with pytest.raises(ValidationError, match="maven_repository"):
        BrokerSettings(maven_repository=url)
