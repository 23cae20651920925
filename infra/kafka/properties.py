"""Configuration of a single-node Kafka in KRaft mode, and reservation of ports."""

import errno
import socket
from collections.abc import Mapping

from streams.kafka.faults import BrokerError

LOOPBACK = "127.0.0.1"
NODE_ID = 1

# One node needs no more; each partition is a directory with open files.
_INTERNAL_PARTITIONS = "8"


OPEN = "PLAINTEXT"
SECURE = "SECURE"
INTERNAL = "INTERNAL"
CONTROLLER = "CONTROLLER"


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
        broker_port: Port for clients.
        controller_port: Port of the controller.
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
