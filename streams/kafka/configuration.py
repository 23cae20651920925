"""The configuration of each kind of client, in librdkafka's terms. No other module sets these."""

from typing import Any

from schemas.kafka_connection import KafkaConnection

Configuration = dict[str, Any]

RECONNECT_WITHIN_MS = 1_000
"""A client is back within so long of its broker's return. librdkafka's own default waits ten times longer."""

_READERS_GROUP = "millrace-readers"


def producer(
    connection: KafkaConnection, client_id: str, *, delivery_timeout_s: float, linger_ms: int
) -> Configuration:
    """A producer that neither loses a record nor repeats it by a retry, and keeps each partition's order.

    Args:
        delivery_timeout_s: for a record to be confirmed, the time without a broker included.
        linger_ms: how long a batch waits for company.
    """
    return {
        **_client(connection, client_id),
        "acks": "all",
        "enable.idempotence": True,
        # As Kafka's Java clients place keys, which differs from this library's own default.
        "partitioner": "murmur2_random",
        "linger.ms": linger_ms,
        "delivery.timeout.ms": round(delivery_timeout_s * 1_000),
    }


def reader(connection: KafkaConnection, client_id: str) -> Configuration:
    """A consumer that is told what to read and commits nothing: no group takes part or needs a right."""
    return {
        **_consumer(connection, client_id),
        "group.id": _READERS_GROUP,  # demanded by the client, used for nothing
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def group_member(connection: KafkaConnection, client_id: str, group: str) -> Configuration:
    """A consumer that shares the work with others of its group, from the earliest record on.

    What is stored as done is committed every second, and when a partition moves.
    """
    return {
        **_consumer(connection, client_id),
        "group.id": group,
        "enable.auto.commit": True,
        "auto.commit.interval.ms": 1_000,
        "enable.auto.offset.store": False,
        # Who keeps a partition keeps its place in it.
        "partition.assignment.strategy": "cooperative-sticky",
        "auto.offset.reset": "earliest",
    }


def administrator(connection: KafkaConnection) -> Configuration:
    """A client that asks about topics and changes them; it leaves the telling of faults to its user."""
    return {
        **_client(connection, "millrace-admin"),
        # It is mostly asked while a broker starts.
        "reconnect.backoff.max.ms": 250,
        "log_level": 0,
    }


def command_line_tool(connection: KafkaConnection) -> Configuration:
    """Return the configuration for other tools on librdkafka, such as kcat."""
    return {"bootstrap.servers": connection.bootstrap_servers, **_security(connection)}


def _client(connection: KafkaConnection, client_id: str) -> Configuration:
    return {
        **command_line_tool(connection),
        "client.id": client_id,
        "reconnect.backoff.max.ms": RECONNECT_WITHIN_MS,
    }


def _consumer(connection: KafkaConnection, client_id: str) -> Configuration:
    return {
        **_client(connection, client_id),
        "allow.auto.create.topics": False,
        # Nothing is decided on a record whose producer has taken it back.
        "isolation.level": "read_committed",
    }


def _security(connection: KafkaConnection) -> Configuration:
    settings: Configuration = {"security.protocol": connection.kafka_security_protocol}
    if connection.uses_tls:
        settings |= _tls(connection)
    if connection.uses_sasl:
        settings["sasl.mechanism"] = connection.kafka_sasl_mechanism
        if connection.kafka_sasl_mechanism == "OAUTHBEARER":
            settings |= _oidc(connection)
        else:
            settings |= {"sasl.username": connection.kafka_username, "sasl.password": connection.password}
    return settings


def _tls(connection: KafkaConnection) -> Configuration:
    files = {
        "ssl.ca.location": connection.kafka_ca_file,
        "ssl.certificate.location": connection.kafka_certificate_file,
        "ssl.key.location": connection.kafka_key_file,
    }
    settings: Configuration = {name: str(path) for name, path in files.items() if path is not None}
    if connection.kafka_key_password is not None:
        settings["ssl.key.password"] = connection.kafka_key_password.get_secret_value()
    hostname_check = "https" if connection.kafka_verify_hostname else "none"
    return {**settings, "ssl.endpoint.identification.algorithm": hostname_check}


def _oidc(connection: KafkaConnection) -> Configuration:
    settings = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": connection.kafka_username,
        "sasl.oauthbearer.client.secret": connection.password,
        "sasl.oauthbearer.token.endpoint.url": str(connection.kafka_token_url),
    }
    if connection.kafka_token_scope is not None:
        settings["sasl.oauthbearer.scope"] = connection.kafka_token_scope
    return settings
