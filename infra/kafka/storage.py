"""Data directory and configuration of a single-node Kafka in KRaft mode, and reservation of ports."""

import base64
import errno
import hashlib
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.kafka.files import FileLock, LockedError, write_private
from schemas.service_base import OTHERS
from streams.kafka.faults import BrokerError

LOOPBACK = "127.0.0.1"
NODE_ID = 1

# One node needs no more; each partition is a directory with open files.
_INTERNAL_PARTITIONS = "8"


OPEN = "PLAINTEXT"
SECURE = "SECURE"
INTERNAL = "INTERNAL"
CONTROLLER = "CONTROLLER"


_BYTES_PER_MIB = 1024 * 1024
_LEAST_FREE_MIB = 64
_TIMEOUT_S = 600
"""Timeout of formatting, which takes some seconds on an idle machine."""


def server_properties(
    listen_host: str, broker_port: int, controller_port: int, log_dir: str
) -> dict[str, str]:
    """Return the server's properties, except those of the controller quorum.

    Clients connect to 127.0.0.1 and `broker_port`, regardless of the host that the broker listens on.
    """
    controller = f"{CONTROLLER}://{LOOPBACK}:{controller_port}"
    return {
        "node.id": str(NODE_ID),
        "process.roles": "broker,controller",
        "listeners": f"{OPEN}://{listen_host}:{broker_port},{controller}",
        "advertised.listeners": f"{OPEN}://{LOOPBACK}:{broker_port},{controller}",
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": OPEN,
        "listener.security.protocol.map": f"{OPEN}:PLAINTEXT,{CONTROLLER}:PLAINTEXT",
        "log.dirs": log_dir,
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": _INTERNAL_PARTITIONS,
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": _INTERNAL_PARTITIONS,
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # An open transaction delays all records after it for this long at most; the default is 15 min.
        "transaction.max.timeout.ms": "60000",
        "share.coordinator.state.topic.num.partitions": _INTERNAL_PARTITIONS,
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # A killed broker may restart when its session has expired; the default is 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # The default of 128 MiB, allocated at the start, is a quarter of the heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }


def secured_properties(
    broker_port: int,
    controller_port: int,
    internal_port: int,
    key_store: str,
    trust_store: str,
    logins: Mapping[str, str],
    super_users: str,
) -> dict[str, str]:
    """Return the properties that differ on a node with authentication, with PEM files as its stores.

    Clients connect by SASL over TLS. The broker, its controller, and the process that makes the first users
    use TLS with the broker's own certificate on both sides: this needs no password before the cluster runs.

    Args:
        internal_port: Port for TLS with the broker's certificate.
        key_store: File with the broker's key and certificate.
        trust_store: File with the certificate of the authority.
        logins: JAAS entry of each SASL mechanism.
        super_users: Principals with all permissions, separated by semicolons.
    """
    listeners = (
        f"{SECURE}://{LOOPBACK}:{broker_port},{INTERNAL}://{LOOPBACK}:{internal_port},"
        f"{CONTROLLER}://{LOOPBACK}:{controller_port}"
    )
    jaas = {
        f"listener.name.{SECURE.lower()}.{mechanism.lower()}.sasl.jaas.config": login
        for mechanism, login in logins.items()
    }
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "inter.broker.listener.name": INTERNAL,
        "listener.security.protocol.map": f"{SECURE}:SASL_SSL,{INTERNAL}:SSL,{CONTROLLER}:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": key_store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": trust_store,
        f"listener.name.{INTERNAL.lower()}.ssl.client.auth": "required",
        f"listener.name.{CONTROLLER.lower()}.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(logins),
        **jaas,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": super_users,
    }


def reserve_port(port: int) -> socket.socket:
    """Bind `port` on 127.0.0.1, or a free one for 0, and keep it as long as the socket is open.

    The socket never listens, so a server that sets SO_REUSEADDR, as Java's do, can bind the port, and no
    other process gets it between its choice and the server's start, or between two starts.

    Raises:
        BrokerError: the port is in use or may not be bound.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:
            # Otherwise connections of an earlier run, in TIME_WAIT, would block it.
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((LOOPBACK, port))
        # Set after the choice of a free port: set before, it could choose one that is reserved already.
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        reservation.close()
        reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be bound ({error.strerror})"
        raise BrokerError(
            f"Port {port} on {LOOPBACK} {reason}: free it, or set MILLRACE_BROKER_PORT to another, or to 0"
        ) from error
    return reservation


class DataDirectory:
    """Paths of the files of a broker, and the lock on all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.storage = self.path / "storage"
        self.server_properties = self.path / "server.properties"
        self.log = self.path / "broker.log"
        self.console = self.path / "console.log"
        self.class_archive = self.path / "classes.jsa"
        self.docker_volume = self.path / "docker-volume"
        self.credentials = self.path / "credentials"
        self.lock = FileLock(self.path / "lock")

    @property
    def docker_volume_name(self) -> str:
        """Docker volume with the data of this directory, if Docker runs the broker."""
        return f"millrace-{hashlib.sha256(bytes(self.path)).hexdigest()[:12]}"

    def acquire(self, orphan_timeout_s: float) -> None:
        """Lock the directory, which is made on first use.

        A broker whose owner was killed ends by itself, within a wait of `orphan_timeout_s` at most.

        Raises:
            BrokerError: the directory is in use or cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire_lock(orphan_timeout_s)
        except LockedError as error:
            raise BrokerError(
                f"The data directory {self.path} is in use by process {error.holder}: "
                "stop that one, or set MILLRACE_BROKER_DATA_DIR to another directory"
            ) from error
        except OSError as error:
            raise self.fault(error) from error

    def check_room(self) -> None:
        """Check the free disk space: on a disk that is almost full, a broker would not run for long.

        Raises:
            BrokerError: too little space is free.
        """
        free_mib = shutil.disk_usage(self.path).free // _BYTES_PER_MIB
        if free_mib < _LEAST_FREE_MIB:
            raise BrokerError(
                f"The data directory {self.path} has {free_mib} MiB free and Kafka needs {_LEAST_FREE_MIB}: "
                "make room, or set MILLRACE_BROKER_DATA_DIR to a directory on another disk"
            )

    def fault(self, error: OSError) -> BrokerError:
        """Return the error about a fault of the file system, with advice."""
        return BrokerError(
            f"Cannot write to the data directory {self.path} ({error.strerror}): "
            "set MILLRACE_BROKER_DATA_DIR to one that can be written"
        )

    @contextmanager
    def acquired(self) -> Iterator[None]:
        """Hold the lock within the block, without a wait; raises as `acquire` does."""
        self.acquire(orphan_timeout_s=0.0)
        try:
            yield
        finally:
            self.lock.release()

    def _acquire_lock(self, orphan_timeout_s: float) -> None:
        try:
            self.lock.acquire()
        except LockedError as error:
            if error.holder is not None and psutil.pid_exists(error.holder):
                raise
            self.lock.acquire(orphan_timeout_s)


def format_storage(
    kafka: list[str], storage_dir: Path, properties: dict[str, str], *, private: bool = False
) -> None:
    """Format `storage_dir` as the storage of a new cluster, unless it exists.

    `kafka` is the Java command to which a main class is added. The storage is renamed to its name when it is
    complete, so a killed process leaves no incomplete storage. If `private`, its files are for their owner
    alone.

    Raises:
        BrokerError: Kafka's tool fails.
    """
    if storage_dir.exists():
        return
    staging = storage_dir.with_name(f"{storage_dir.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    configuration = storage_dir.with_name("format.properties")
    write_properties(configuration, {**properties, "log.dirs": str(staging)})
    command = [
        *kafka,
        "kafka.tools.StorageTool",
        "format",
        "--standalone",
        f"--cluster-id={_new_cluster_id()}",
        f"--config={configuration}",
    ]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            umask=OTHERS if private else -1,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(
            f"Kafka did not format {storage_dir} within {_TIMEOUT_S} s: see the machine's load"
        ) from error
    finally:
        configuration.unlink()
    if answer.returncode != 0:
        shutil.rmtree(staging, ignore_errors=True)
        lines = (answer.stdout + answer.stderr).splitlines() or [f"exit status {answer.returncode}"]
        raise BrokerError("\n".join([f"Kafka could not format {storage_dir}: {lines[-1]}", *lines]))
    staging.rename(storage_dir)


def write_properties(path: Path, properties: dict[str, str]) -> None:
    """Write a Java properties file, for its owner alone: it may have passwords."""
    # A backslash begins an escape in this format.
    lines = (f"{name}={value}\n".replace("\\", "\\\\") for name, value in properties.items())
    write_private(path, "".join(lines).encode())


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
