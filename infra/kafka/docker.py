"""A Kafka broker in a container of a Docker engine on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from infra.kafka.jars import kafka_version
from infra.kafka.settings import BrokerSettings
from infra.kafka.storage import LOOPBACK, NODE_ID, reserve_port, server_properties
from schemas.kafka_connection import KafkaConnection
from streams.kafka.administration import Administration
from streams.kafka.faults import BrokerError

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

_PING_TIMEOUT_S = 3
_STORAGE_DIR = "/var/lib/kafka/data"
_CONTROLLER_PORT = 9093  # seen inside the container only


def docker_answers() -> bool:
    """Return whether a Docker engine answers, and the extra `docker` is installed."""
    if find_spec("testcontainers") is None:
        return False
    # A late import, as below: it takes a third of a second, and most starts do not need it.
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=_PING_TIMEOUT_S)
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except (DockerException, OSError):
        return False
    finally:
        client.close()


@contextmanager
def docker_kafka(settings: BrokerSettings, volume: str | None) -> Iterator[str]:
    """Run Kafka in a container and yield its bootstrap servers.

    The data is in the Docker volume `volume`; without one, it is removed with the container.
    Testcontainers' reaper removes the container when this process is killed.

    Raises:
        BrokerError: the image is not available, or the container does not start or answer.
    """
    with reserve_port(settings.broker_port) as reservation:
        port = reservation.getsockname()[1]
    container = _start(settings, port, volume)
    servers = f"{LOOPBACK}:{port}"
    try:
        connection = KafkaConnection(bootstrap_servers=servers)
        # Docker accepts connections for the broker before it runs.
        Administration(connection, settings.broker_start_timeout_s).await_broker(starting=True)
        yield servers
    finally:
        container.get_wrapped_container().stop(timeout=round(settings.broker_stop_timeout_s))
        container.stop()


def _start(settings: BrokerSettings, port: int, volume: str | None) -> "DockerContainer":
    from docker.errors import DockerException
    from testcontainers.core.container import DockerContainer

    image = f"apache/kafka:{kafka_version()}"
    try:
        container = DockerContainer(image).with_envs(**_environment(settings, port))
        # Published only on loopback, since this broker has no authentication.
        container.ports[f"{port}/tcp"] = (LOOPBACK, port)  # type: ignore[assignment]
        if volume is not None:
            container.with_volume_mapping(volume, _STORAGE_DIR, mode="rw")
        return container.__enter__()  # unlike start(), cleans up when it fails
    # Testcontainers lets the errors of requests (an OSError) through and adds some RuntimeErrors.
    except (DockerException, OSError, RuntimeError) as error:
        raise BrokerError(f"Docker could not start {image} ({error}): pull it by hand to see why") from error


def _environment(settings: BrokerSettings, port: int) -> dict[str, str]:
    """Return the broker's configuration as environment variables of the image."""
    # The same port inside and outside: the broker itself connects to the advertised address too.
    properties = server_properties("0.0.0.0", port, _CONTROLLER_PORT, _STORAGE_DIR)
    # The image formats its storage for static voters.
    properties["controller.quorum.voters"] = f"{NODE_ID}@{LOOPBACK}:{_CONTROLLER_PORT}"
    return {
        "KAFKA_HEAP_OPTS": f"-Xmx{settings.broker_heap_mib}m",
        **{f"KAFKA_{name.replace('.', '_').upper()}": value for name, value in properties.items()},
    }
