import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from infra.broker import BrokerError, BrokerSettings, LocalKafka, broker
from infra.kafka.distribution import parse_major_version
from infra.kafka.docker import docker_answers, docker_kafka
from infra.topics import describe_topics, ensure_topics
from schemas.kafka_connection import KafkaConnection
from schemas.topics import TopicSpec
from tests.infra.kafka_records import send, values
from tests.support.processes import is_gone_within

REPOSITORY = Path(__file__).parents[2]

TOPIC = TopicSpec("kept.jobs", partitions=1, retention_ms=-1)

# Starts a broker, and stays deaf to Ctrl-C.
OWNER = """
import signal, sys, time
from pathlib import Path
from infra.broker import LocalKafka

signal.signal(signal.SIGINT, signal.SIG_IGN)
kafka = LocalKafka(Path(sys.argv[1]))
kafka.start()
print(kafka.pid, kafka.bootstrap_servers, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was stopped, with one record in a topic."""
    path = tmp_path_factory.mktemp("broker")
    with LocalKafka(path) as kafka:
        ensure_topics(kafka.connection("admin"), [TOPIC])
        assert send(kafka.bootstrap_servers, TOPIC.name, b"first", acks="all") is None
    return path


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'no-docker.sock'}")


@pytest.mark.integration
def test_the_shared_broker_answers_on_loopback_alone(kafka: str) -> None:
    metadata = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10)
    assert [f"{node.host}:{node.port}" for node in metadata.brokers.values()] == [kafka]
    assert kafka.startswith("127.0.0.1:")


@pytest.mark.integration
def test_data_survives_a_stop_and_a_start_on_another_port(data_dir: Path) -> None:
    former_port = _configured_port(data_dir)
    # Held here, so that the broker must take another.
    with socket.create_server(("127.0.0.1", former_port)), LocalKafka(data_dir) as kafka:
        assert kafka.bootstrap_servers != f"127.0.0.1:{former_port}"
        assert values(kafka.bootstrap_servers, TOPIC.name, 1) == [b"first"]


@pytest.mark.integration
def test_a_killed_broker_comes_back_on_its_ports_with_its_data(data_dir: Path) -> None:
    with LocalKafka(data_dir) as kafka:
        address, pid = kafka.bootstrap_servers, kafka.pid
        assert pid is not None
        before = len(_all_values(address))
        assert send(address, TOPIC.name, b"before the kill", acks="all") is None
        kafka.kill()
        assert not psutil.pid_exists(pid)
        assert kafka.pid is None
        with pytest.raises(BrokerError, match=f"in use by process {os.getpid()}"):
            LocalKafka(data_dir).start()
        kafka.start()
        assert kafka.bootstrap_servers == address
        assert kafka.pid not in (None, pid)
        assert _all_values(address)[before:] == [b"before the kill"]


@pytest.mark.integration
def test_a_broker_that_dies_is_started_again_even_without_its_supervisor(data_dir: Path) -> None:
    settings = BrokerSettings(bootstrap_servers=None, broker_data_dir=data_dir)
    with LocalKafka(data_dir, settings) as kafka:
        address, pid = kafka.bootstrap_servers, kafka.pid
        assert pid is not None
        assert not kafka.keep_running()
        supervisor = psutil.Process(pid).parent()
        assert supervisor is not None
        supervisor.kill()
        os.kill(pid, signal.SIGKILL)
        assert is_gone_within(pid, timeout_s=5)
        assert is_gone_within(supervisor.pid, timeout_s=5)
        assert kafka.keep_running()
        assert kafka.bootstrap_servers == address
        assert values(address, TOPIC.name, 1) == [b"first"]


@pytest.mark.integration
def test_the_broker_survives_ctrl_c_and_dies_with_its_killed_owner(data_dir: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(data_dir)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert owner.stdout is not None
    try:
        pid, address = owner.stdout.readline().split()
        os.killpg(owner.pid, signal.SIGINT)
        assert values(address, TOPIC.name, 1) == [b"first"]
        with pytest.raises(BrokerError, match=f"in use by process {owner.pid}: .*MILLRACE_BROKER_DATA_DIR"):
            LocalKafka(data_dir).start()
    finally:
        owner.kill()
        owner.communicate()
    assert is_gone_within(int(pid), timeout_s=10)


@pytest.mark.integration
def test_a_broker_that_does_not_come_up_shows_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    with pytest.raises(BrokerError) as failure:
        LocalKafka(tmp_path).start()
    summary, *tail = str(failure.value).splitlines()
    assert re.fullmatch(rf"The local Kafka broker ended with status 1; see {tmp_path}/broker\.log", summary)
    assert any("meta.properties" in line for line in tail)


@pytest.mark.integration
@pytest.mark.skipif(not docker_answers(), reason="no Docker engine answers")
def test_docker_runs_a_broker() -> None:
    with docker_kafka(BrokerSettings(), volume=None) as bootstrap_servers:
        ensure_topics(KafkaConnection(bootstrap_servers=bootstrap_servers), [TOPIC])
        assert send(bootstrap_servers, TOPIC.name, b"contained") is None
        assert values(bootstrap_servers, TOPIC.name, 1) == [b"contained"]


@pytest.mark.integration
def test_a_named_cluster_is_used_as_it_is(kafka: str) -> None:
    with broker(BrokerSettings(bootstrap_servers=kafka)) as bootstrap_servers:
        assert bootstrap_servers == kafka


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", "kafka.example:9092")
    monkeypatch.setenv("MILLRACE_BROKER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("MILLRACE_BROKER_PORT", "9092")
    settings = BrokerSettings()
    assert settings.bootstrap_servers == "kafka.example:9092"
    assert settings.broker_data_dir == tmp_path
    assert settings.broker_port == 9092


def test_a_named_cluster_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    settings = BrokerSettings(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_s=0.3)
    assert re.fullmatch(
        r"No Kafka broker answers at 127\.0\.0\.1:1 within 0\.3 s \(.*\): "
        "start it, or correct or unset MILLRACE_BOOTSTRAP_SERVERS",
        _failure(settings),
    )


@pytest.mark.usefixtures("no_docker")
def test_an_ephemeral_broker_leaves_nothing_even_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = _own_broker_settings(tmp_path, broker_port=server.getsockname()[1])
        with pytest.raises(BrokerError, match="is taken"), broker(settings, ephemeral=True):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_docker")
def test_nothing_to_run_a_broker_with_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert _failure(_own_broker_settings(tmp_path)) == (
        "No Kafka broker: install Java 17 or newer, start Docker, "
        "or set MILLRACE_BOOTSTRAP_SERVERS to a running broker"
    )


@pytest.mark.usefixtures("no_docker")
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
def test_a_java_that_will_not_do_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    failure = _failure(_own_broker_settings(tmp_path))
    assert failure.startswith(str(java))
    assert message in failure
    assert len(failure.splitlines()) == 1


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
def test_a_data_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert re.fullmatch(
        rf"Cannot write to the data directory {in_the_way}/data \(Not a directory\): "
        "set MILLRACE_BROKER_DATA_DIR to one that can be written",
        _failure(_own_broker_settings(in_the_way)),
    )


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


def _own_broker_settings(tmp_path: Path, broker_port: int = 0) -> BrokerSettings:
    """Settings that name no cluster, whatever the environment of the tests says."""
    return BrokerSettings(bootstrap_servers=None, broker_data_dir=tmp_path / "data", broker_port=broker_port)


def _failure(settings: BrokerSettings) -> str:
    with pytest.raises(BrokerError) as failure, broker(settings):
        pass
    return str(failure.value)


def _configured_port(data_dir: Path) -> int:
    match = re.search(
        r"^listeners=PLAINTEXT://127\.0\.0\.1:(\d+)", (data_dir / "server.properties").read_text(), re.M
    )
    assert match is not None
    return int(match[1])


def _all_values(bootstrap_servers: str) -> list[bytes]:
    (row,) = describe_topics(KafkaConnection(bootstrap_servers=bootstrap_servers), prefix="kept")
    return values(bootstrap_servers, TOPIC.name, row.records)
