"""Errors of a secured cluster for a user without a right: one line, soon."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from executors.node.commands import CommandLog
from executors.node.settings import ExecutorSettings
from infra.cli import run
from infra.kafka.credentials import write_certificates
from infra.kafka.local import LocalKafka
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from infra.topics import apply_grants, ensure_topics, grants
from schemas.kafka_connection import KafkaConnection
from schemas.kind import ROLES
from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported
from schemas.topics import topics
from streams.kafka.faults import BrokerError
from streams.solver.service import SolverService, SolverSettings
from streams.worker.settings import WorkerSettings
from streams.worker.worker import prepare
from tests.integration.deployment import DEMO_CELLS, ROOT, demo_bid

PREFIX = "locked"
SOON_S = 6.0
BID = json.dumps(demo_bid("j", 3))
QUOTE = '{"cell": "demo", "vendor": "couriers", "leaves": true}'
COMMANDS = {
    "submit": ["submit", "{bid}"],
    "submit --no-wait": ["submit", "{bid}", "--no-wait"],
    "withdraw": ["withdraw", "j", "--user", "u"],
    "quote": ["quote", "{bid}"],
    "vendor-quote": ["vendor-quote", "{quote}"],
    "watch": ["watch", "--once"],
    "explain": ["explain", "j"],
    "state": ["state", "demo"],
    "replay": ["replay"],
    "topics list": ["topics", "list"],
    "topics check": ["topics", "check"],
    "topics create": ["topics", "create"],
    "topics acls": ["topics", "acls", "--apply", "--json"],
    "clock": ["clock", str(DEMO_CELLS)],
}
SERVICES = {
    "worker": ["worker", str(DEMO_CELLS)],
    "solver": ["solver"],
    "executor": ["executor", "--node", "node-a100"],
}


@pytest.fixture(scope="module")
def kafka(secured: LocalKafka) -> LocalKafka:
    admin = secured.connection("admin")
    ensure_topics(admin, topics(PREFIX))
    apply_grants(admin, grants(PREFIX))
    return secured


def wrong_password(good: KafkaConnection, folder: Path) -> KafkaConnection:
    file = folder / "password"
    file.write_text("guessed")
    return good.model_copy(update={"kafka_password_file": file})


def unknown_authority(good: KafkaConnection, folder: Path) -> KafkaConnection:
    write_certificates(folder / "other.pem", folder / "key.pem", "127.0.0.1")
    return good.model_copy(update={"kafka_ca_file": folder / "other.pem"})


def lacking_mechanism(good: KafkaConnection, folder: Path) -> KafkaConnection:
    return good.model_copy(update={"kafka_sasl_mechanism": "SCRAM-SHA-256"})


def no_security(good: KafkaConnection, folder: Path) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=good.bootstrap_servers)


FAULTS: dict[str, tuple[Callable[[KafkaConnection, Path], KafkaConnection], str]] = {
    "a wrong password": (wrong_password, "does not let user users in: wrong password, or no such user"),
    "a certificate that does not verify": (
        unknown_authority,
        "The certificate of Kafka at {at} does not verify (unable to get local issuer certificate): set "
        "MILLRACE_KAFKA_CA_FILE",
    ),
    "a mechanism that the cluster lacks": (
        lacking_mechanism,
        "does not have SASL mechanism SCRAM-SHA-256, it has PLAIN, SCRAM-SHA-512: set MILLRACE_KAFKA_SASL",
    ),
    "no TLS": (no_security, "drops connections under PLAINTEXT: set MILLRACE_KAFKA_SECURITY_PROTOCOL"),
}


def arguments(command: list[str], folder: Path) -> list[str]:
    files = {"bid": folder / "bid.yaml", "quote": folder / "quote.yaml"}
    files["bid"].write_text(f"[{BID}]")
    files["quote"].write_text(f"[{QUOTE}]")
    return [part.format(**files) for part in command]


def environment(connection: KafkaConnection, folder: Path) -> dict[str, str]:
    of_executor = {"MILLRACE_CELL": "demo", "MILLRACE_DATASET_ROOT": str(folder)}
    roots = {f"MILLRACE_{name}_ROOT": str(folder / name.lower()) for name in ("OUTPUT", "STATE")}
    return {**connection.environment(), **of_executor, **roots, "MILLRACE_TOPIC_PREFIX": PREFIX}


@pytest.fixture
def attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[KafkaConnection, str], str]:
    """Return a runner of a command that must fail soon, which returns its error line."""

    def call(connection: KafkaConnection, command: str) -> str:
        for name, value in environment(connection, tmp_path).items():
            monkeypatch.setenv(name, value)
        began_s = time.monotonic()
        status = run(arguments(COMMANDS[command], tmp_path))
        took_s = time.monotonic() - began_s
        said = capfd.readouterr()
        assert (status, took_s < SOON_S) == (1, True), (command, took_s, said)
        assert said.err.startswith("millrace: "), (command, said)
        assert said.err.count("\n") == 1, (command, said)
        return said.err

    return call


@pytest.mark.parametrize(("spoil", "line"), FAULTS.values(), ids=FAULTS.keys())
def test_commands_explain_refused_access(kafka, tmp_path, attempt, spoil, line):
    connection = spoil(kafka.connection("users"), tmp_path)
    # A dropped connection may come from a broker that starts: to find out takes two seconds.
    for command in ["submit", "watch"] if spoil is no_security else COMMANDS:
        assert line.format(at=kafka.bootstrap_servers) in attempt(connection, command), command


def test_service_without_access_ends_with_reason(kafka, tmp_path):
    spoil, line = FAULTS["a wrong password"]
    connection = spoil(kafka.connection("users"), tmp_path)
    for name, (status, said) in ended(connection, tmp_path).items():
        assert status in (1, 2), (name, said)
        assert line.format(at=kafka.bootstrap_servers) in said, name
        assert said.count("\n") == 1, (name, said)


@pytest.mark.parametrize(("spoil", "line"), FAULTS.values(), ids=FAULTS.keys())
def test_what_a_service_asks_first_is_answered_soon(kafka, tmp_path, spoil, line):
    fields = {**spoil(kafka.connection("users"), tmp_path).as_fields(), "topic_prefix": PREFIX}
    first = {
        "worker": lambda: prepare(WorkerSettings(**fields), f"{PREFIX}.snapshots"),
        "solver": lambda: SolverService(SolverSettings(**fields), None, threading.Event()),
        "executor": lambda: CommandLog.connect(ExecutorSettings(cell="demo", node="n1", **fields)),
    }
    for name, ask in first.items():
        began_s = time.monotonic()
        with pytest.raises(BrokerError) as refused:
            ask()
        assert line.format(at=kafka.bootstrap_servers) in str(refused.value), name
        assert time.monotonic() - began_s < SOON_S, name


def ended(connection: KafkaConnection, folder: Path) -> dict[str, tuple[int, str]]:
    """Status and last words of each service, started side by side."""
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "infra.cli", *command],
            cwd=ROOT,
            env={**os.environ, **environment(connection, folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, command in SERVICES.items()
    }
    try:
        words = {name: process.communicate(timeout=60)[0] for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return {name: (process.returncode, words[name]) for name, process in processes.items()}


# Who tries, and what it is that the principal may not do.
DENIED = {
    "submit": ("vendors", "user vendors may not read topic locked.jobs.dlt"),
    "submit --no-wait": ("vendors", "user vendors may not write topic locked.jobs"),
    "withdraw": ("vendors", "user vendors may not read topic locked.jobs.state"),
    "quote": ("auditor", "user auditor may not write topic locked.jobs"),
    "vendor-quote": ("users", "user users may not read topic locked.quotes.dlt"),
    "watch": ("users", "user users may not read topic locked.ledger"),
    "explain": ("nodes", "user nodes may not read topic locked.ledger"),
    "state": ("users", "user users may not read topic locked.ledger"),
    "replay": ("solver", "user solver may not read topic locked.decisions"),
    "topics list": ("users", "user users may not see the configuration of topic locked."),
    "topics check": ("worker", "user worker may not see the configuration of topic locked."),
    "topics create": ("nodes", "user nodes may not see the configuration of topic locked."),
    "topics acls": ("operators", "user operators may not change access to "),
    "clock": ("users", "user users may not read topic locked.ledger"),
}


@pytest.mark.parametrize("command", DENIED)
def test_who_lacks_a_right_reads_which(kafka, attempt, command):
    principal, line = DENIED[command]
    said = attempt(kafka.connection(principal), command)
    assert line in said
    assert "`millrace topics acls` shows which role may" in said


def test_user_may_publish_no_profile(kafka):
    point = ProfilePoint(gpu_type="A40", micro_batch_size=1, step_s=1.0, tokens_per_sample=9.0, steps=3)
    key = ProfileKey(
        base_model="tiny-llama", sequence_tokens=16, rank=8, target_modules=("q_proj",), precision="float32"
    )
    forged = ProfileReported(cell="demo", zone="tiny", profiler="lab", key=key, points=(point,))
    publisher = EventPublisher(Target(kafka.connection("users"), PREFIX), "test")
    with pytest.raises(BrokerError, match=r"user users may not write topic locked\.profiles"):
        publisher.publish(forged)
    with EventPublisher(Target(kafka.connection("profilers"), PREFIX), "test") as permitted:
        permitted.publish(forged)


def test_service_without_right_ends_naming_it(kafka, tmp_path):
    words = ended(kafka.connection("users"), tmp_path)
    assert {name: status for name, (status, _) in words.items()} == {"worker": 2, "solver": 2, "executor": 2}
    assert "user users may not read topic locked.cells; " in words["worker"][1]
    assert "read and write topic locked.ledger" in words["worker"][1]
    assert (
        "user users may not write topic locked.solves.finished; read topic locked.solves.requested: "
        in words["solver"][1]
    )
    assert "user users may not read topic locked.commands; write topic locked.fleet: " in words["executor"][1]
    assert all(said.count("\n") == 1 for _, said in words.values())


def test_secrets_are_in_no_log_or_command_line(kafka):
    folder = kafka.log_path.parent
    passwords = [file.read_text().strip() for file in (folder / "credentials").glob("*.password")]
    assert len(passwords) == len(ROLES) + 1, "of each role, and of the broker itself"
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    logs = [path.read_bytes() for path in folder.glob("*.log*")]
    for password in passwords:
        assert not any(password.encode() in text for text in [*logs, *command_lines])


def test_what_is_secret_is_its_owners_alone(kafka):
    folder = kafka.log_path.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in [folder / "server.properties", *(folder / "credentials").iterdir()]:
        assert path.stat().st_mode & 0o777 == 0o600, path
