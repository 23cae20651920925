"""A Kafka broker in a separate process on this machine."""

import signal
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.kafka.credentials import PRINCIPALS, SUPER_USERS, Credentials, Principal
from infra.kafka.files import keep_to_owner
from infra.kafka.jars import kafka_jars
from infra.kafka.java import ClassArchive, find_java
from infra.kafka.process import Restarts, SupervisedProcess
from infra.kafka.settings import BrokerSettings
from infra.kafka.storage import (
    LOOPBACK,
    DataDirectory,
    format_storage,
    reserve_port,
    secured_properties,
    server_properties,
    write_properties,
)
from schemas.kafka_connection import KafkaConnection
from streams.kafka.administration import Administration
from streams.kafka.faults import BrokerError

_LOG4J_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_LOG_TAIL_LINES = 15
_STOPPED_IN_ORDER = 128 + signal.SIGTERM
# Added to the stop timeout for the broker of a killed process to end.
_ORPHAN_MARGIN_S = 5


class LocalKafka:
    """A single-node Kafka in KRaft mode that keeps its data in `data_dir`.

    It is open to all processes on this machine, or secured: then clients log in as one of `PRINCIPALS`, whose
    passwords are in `data_dir`, and need permissions for every operation. The data of a secured broker is
    never served without security again.

    It ends with the process that started it, even if that is killed, and may be started again after `stop()`
    or `kill()`, on the same ports. As a context manager it runs within the block.
    """

    def __init__(self, data_dir: Path, settings: BrokerSettings | None = None) -> None:
        self._data = DataDirectory(data_dir)
        self._settings = settings or BrokerSettings()
        self._broker_port = self._settings.broker_port
        self._controller_port = 0
        self._internal_port = 0
        self.credentials: Credentials | None = None
        """Passwords of the principals; None on an open broker."""
        self._reservations: list[socket.socket] = []
        self._process: SupervisedProcess | None = None
        self._archive: ClassArchive | None = None
        self._restarts = Restarts()

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients; valid from the first start on."""
        return f"{LOOPBACK}:{self._broker_port}"

    def connection(self, principal: Principal) -> KafkaConnection:
        """Return the connection of a principal; a broker without security ignores the principal."""
        if self.credentials is None:
            return KafkaConnection(bootstrap_servers=self.bootstrap_servers)
        return self.credentials.connection(principal, self.bootstrap_servers)

    @property
    def pid(self) -> int | None:
        """Process id of the running Java virtual machine; None when none runs."""
        return self._process.pid if self._process else None

    @property
    def log_path(self) -> Path:
        return self._data.log

    def start(self) -> None:
        """Start the broker, unless it runs, and return when it answers.

        Raises:
            BrokerError: Java or Kafka's jars are missing, the data directory is in use, full or cannot be
                written, the port is in use, or the broker does not start.
        """
        if self.pid is not None:
            return
        try:
            if not self._data.lock.is_held:
                self._data.acquire(self._settings.broker_stop_timeout_s + _ORPHAN_MARGIN_S)
            self._data.check_room()
            self._make_credentials()
            self._reserve_ports()
            self._launch()
            self._wait_until_ready()
            if self.credentials is not None:
                self._make_users(self.credentials)
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                raise self._data.fault(error) from error
            raise

    def keep_running(self) -> bool:
        """Restart the broker, on its ports and data, if it has died; return whether it had.

        Raises:
            BrokerError: the broker does not start, or keeps dying.
        """
        status = self._process.exit_status if self._process else None
        if status is None:
            return False
        if not self._restarts.allow():
            raise BrokerError(f"The local Kafka broker keeps dying (status {status}); see {self.log_path}")
        self.start()
        return True

    def stop(self) -> None:
        """Stop the broker in order, or kill it after a timeout, and release ports and data."""
        if self._process:
            self._process.stop()
            if self._archive and self._process.exit_status == _STOPPED_IN_ORDER:
                self._archive.keep()
            self._process = None
        while self._reservations:
            self._reservations.pop().close()
        self._data.lock.release()

    def kill(self) -> None:
        """Kill the broker as a crash would (SIGKILL); its ports and data stay reserved for `start()`."""
        if self._process:
            self._process.kill()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _reserve_ports(self) -> None:
        if not self._reservations:
            self._broker_port = self._reserved(self._broker_port)
            self._controller_port = self._reserved(self._controller_port)
            if self.credentials is not None:
                self._internal_port = self._reserved(self._internal_port)

    def _reserved(self, port: int) -> int:
        reservation = reserve_port(port)
        self._reservations.append(reservation)
        return int(reservation.getsockname()[1])

    def _launch(self) -> None:
        java, jars = find_java(), kafka_jars(self._settings)
        archive = self._archive = ClassArchive(java, jars, self._data.class_archive)
        kafka = [
            str(java),
            f"-Xmx{self._settings.broker_heap_mib}m",
            "-XX:+UseSerialGC",
            # The optimising compiler costs a small machine more than a broker of one fleet gains by it.
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={_LOG4J_CONFIGURATION}",
            f"-Dmillrace.broker.log={self.log_path}",
            "-classpath",
            f"{jars}/*",
        ]
        properties = self._properties()
        format_storage(
            [kafka[0], *archive.uses, *kafka[1:]],
            self._data.storage,
            properties,
            private=self.credentials is not None,
        )
        write_properties(self._data.server_properties, properties)
        self._process = SupervisedProcess(
            [kafka[0], *archive.uses_or_makes, *kafka[1:], "kafka.Kafka", str(self._data.server_properties)],
            working_dir=self._data.path,
            console_path=self._data.console,
            stop_timeout_s=self._settings.broker_stop_timeout_s,
            # Keeps the data locked until the broker has ended, even when this process is killed.
            inherited=self._data.lock.fileno(),
            private=self.credentials is not None,
        )

    def _properties(self) -> dict[str, str]:
        properties = server_properties(
            LOOPBACK, self._broker_port, self._controller_port, str(self._data.storage)
        )
        # A quorum formatted with --standalone has the controller's address in the data, and the controller
        # updates it when it becomes active: the port may change between runs.
        properties["controller.quorum.bootstrap.servers"] = f"{LOOPBACK}:{self._controller_port}"
        if self.credentials is not None:
            properties |= secured_properties(
                self._broker_port,
                self._controller_port,
                self._internal_port,
                key_store=str(self.credentials.broker),
                trust_store=str(self.credentials.authority),
                logins=self.credentials.logins(),
                super_users=SUPER_USERS,
            )
        return properties

    def _make_credentials(self) -> None:
        credentials = Credentials(self._data.credentials)
        if not self._settings.broker_secure and not credentials.exist:
            return
        # The log in this folder has the verifiers of the passwords.
        keep_to_owner(self._data.path)
        credentials.make()
        self.credentials = credentials

    def _make_users(self, credentials: Credentials) -> None:
        """Set the password of every principal in the cluster to the one in its file."""
        admin = Administration(self._own_connection(), self._settings.broker_start_timeout_s)
        for principal in PRINCIPALS:
            admin.set_password(principal, credentials.connection(principal, self.bootstrap_servers).password)
        Administration(self.connection("admin"), self._settings.broker_start_timeout_s).await_broker()
        credentials.write_for_tools(self.bootstrap_servers)

    def _own_connection(self) -> KafkaConnection:
        if self.credentials is None:
            return KafkaConnection(bootstrap_servers=self.bootstrap_servers)
        return self.credentials.brokers_own(f"{LOOPBACK}:{self._internal_port}")

    def _wait_until_ready(self) -> None:
        try:
            admin = Administration(self._own_connection(), self._settings.broker_start_timeout_s)
            admin.await_broker(self._check_running, starting=True)
        except BrokerError as error:
            raise BrokerError(f"{error}; see {self.log_path}\n{self._log_tail()}") from error

    def _check_running(self) -> None:
        if self._process and self._process.exit_status is not None:
            raise BrokerError(f"The local Kafka broker ended with status {self._process.exit_status}")

    def _log_tail(self) -> str:
        lines = [
            line
            for path in (self._data.console, self._data.log)
            if path.exists()
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        ]
        return "\n".join(lines)
