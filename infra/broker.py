"""The Kafka broker of a command: a cluster of the user, a container in Docker, or a local process."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from infra.kafka.credentials import Credentials, Principal
from infra.kafka.docker import docker_answers, docker_kafka
from infra.kafka.local import LocalKafka
from infra.kafka.settings import BrokerSettings, broker_settings
from infra.kafka.storage import DataDirectory
from schemas.errors import require_extra
from schemas.kafka_connection import KafkaConnection, KafkaSettings
from schemas.service_base import described_fault
from streams.kafka.administration import Administration
from streams.kafka.faults import BrokerError, UnansweredError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningBroker:
    """A broker that runs within a block."""

    bootstrap_servers: str
    connection: Callable[[Principal], KafkaConnection]
    """Returns the connection of a principal. A user's cluster has the same connection for all principals,
    from the environment. An open broker has no authentication."""
    credentials: Credentials | None = None
    """Passwords of a secured local broker."""
    keep_running: Callable[[], bool] = lambda: False
    """Restarts a local broker if it has died, and returns whether it had. Clusters of users and brokers in
    Docker are left alone. Raises BrokerError if it keeps dying."""


@contextmanager
def watched_broker(
    settings: BrokerSettings | None = None, *, ephemeral: bool = False
) -> Iterator[RunningBroker]:
    """Yield the first broker that works: at MILLRACE_BOOTSTRAP_SERVERS, in Docker, local Kafka.

    A cluster named in the settings is used as it is. Any other broker runs within the block; its data stays
    in `broker_data_dir`, or is deleted at the end when `ephemeral`.

    Raises:
        BrokerError: the named cluster does not answer, or no broker can be started here.
    """
    settings = settings or broker_settings()
    with ExitStack() as stack:
        if settings.bootstrap_servers:
            yield _named_cluster(settings, settings.bootstrap_servers)
        elif ephemeral:
            data_dir = Path(stack.enter_context(TemporaryDirectory(prefix="millrace-broker-")))
            local = _local_broker(settings, data_dir)
            if settings.broker_secure:
                yield stack.enter_context(local)
            else:
                yield _first_that_works(stack, _docker_broker(settings, volume=None), local)
        else:
            yield _lasting_broker(stack, settings)


def _named_cluster(settings: BrokerSettings, bootstrap_servers: str) -> RunningBroker:
    if settings.broker_secure:
        raise BrokerError(
            f"The cluster at {bootstrap_servers} is yours to secure: unset MILLRACE_BOOTSTRAP_SERVERS for a "
            "secured local broker, or set MILLRACE_KAFKA_* to connect to yours"
        )
    try:
        connection = KafkaSettings(bootstrap_servers=bootstrap_servers)
    except ValidationError as error:
        raise BrokerError(f"settings: {described_fault(error)}") from None
    try:
        Administration(connection, settings.bootstrap_timeout_s).await_broker()
    except UnansweredError as error:
        # No other broker is started, because the user named this cluster.
        raise BrokerError(f"{error}: start it, or correct or unset MILLRACE_BOOTSTRAP_SERVERS") from error
    return RunningBroker(bootstrap_servers, lambda _principal: connection)


def _lasting_broker(stack: ExitStack, settings: BrokerSettings) -> RunningBroker:
    """Start the kind of broker that wrote the present data. Another kind would start without the data."""
    data = DataDirectory(settings.broker_data_dir)
    local = _local_broker(settings, data.path)
    docker = _lasting_docker_broker(settings, data)
    if data.docker_volume.exists() and settings.broker_secure:
        raise BrokerError(
            f"The data of {data.path} are an open broker's in Docker, which cannot be secured: set "
            "MILLRACE_BROKER_DATA_DIR to another directory"
        )
    if data.storage.exists() or settings.broker_secure:
        return stack.enter_context(local)
    if not data.docker_volume.exists():
        return _first_that_works(stack, docker, local)
    require_extra("docker")
    if not docker_answers():
        raise BrokerError(
            f"The data of {data.path} is in the Docker volume {data.docker_volume_name}, and Docker does not "
            "answer: start Docker, or set MILLRACE_BROKER_DATA_DIR to another directory"
        )
    return stack.enter_context(docker)


def _first_that_works(
    stack: ExitStack,
    docker: AbstractContextManager[RunningBroker],
    local: AbstractContextManager[RunningBroker],
) -> RunningBroker:
    if docker_answers():
        try:
            return stack.enter_context(docker)
        except BrokerError as error:
            _log.warning("%s; running Kafka without Docker", error)
    return stack.enter_context(local)


@contextmanager
def _local_broker(settings: BrokerSettings, data_dir: Path) -> Iterator[RunningBroker]:
    with LocalKafka(data_dir, settings) as kafka:
        yield RunningBroker(kafka.bootstrap_servers, kafka.connection, kafka.credentials, kafka.keep_running)


@contextmanager
def _docker_broker(settings: BrokerSettings, volume: str | None) -> Iterator[RunningBroker]:
    with docker_kafka(settings, volume) as bootstrap_servers:
        connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
        yield RunningBroker(bootstrap_servers, lambda _principal: connection)


@contextmanager
def _lasting_docker_broker(settings: BrokerSettings, data: DataDirectory) -> Iterator[RunningBroker]:
    with (
        data.acquired(),
        _docker_broker(settings, data.docker_volume_name) as running,
    ):
        data.docker_volume.write_text(data.docker_volume_name, encoding="utf-8")
        yield running
