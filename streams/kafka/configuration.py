"""The configuration of each kind of client, by librdkafka's names. No other module sets these."""

from typing import Any

from schemas.kafka_connection import KafkaConnection

Configuration = dict[str, Any]

RECONNECT_WITHIN_MS = 1_000
"""Longest delay of a reconnection after a broker's return. librdkafka's default is ten times longer."""

_READERS_GROUP = "millrace-readers"


def producer(
    connection: KafkaConnection, client_id: str, *, delivery_timeout_s: float, linger_ms: int
) -> Configuration:
    """Return the configuration of a producer that neither loses nor repeats records and keeps their order.

    Args:
        delivery_timeout_s: longest time until a record is confirmed, outages of the broker included.
        linger_ms: longest wait of a batch for further records.
    """
    return {
        **_client(connection, client_id),
        "acks": "all",
        "enable.idempotence": True,
        # The partitioner of Kafka's Java clients, which differs from this library's default.
        "partitioner": "murmur2_random",
        "linger.ms": linger_ms,
        "delivery.timeout.ms": round(delivery_timeout_s * 1_000),
    }


def reader(connection: KafkaConnection, client_id: str) -> Configuration:
    """Return the configuration of a consumer with given partitions that commits nothing and needs no
    group."""
    return {
        **_consumer(connection, client_id),
        "group.id": _READERS_GROUP,  # required by the client, without use
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def group_member(connection: KafkaConnection, client_id: str, group: str) -> Configuration:
    """Return the configuration of a consumer that shares partitions with its group, from the earliest record
    on.

    Offsets that are stored as done are committed every second, and when a partition moves.
    """
    return {
        **_consumer(connection, client_id),
        "group.id": group,
        "enable.auto.commit": True,
        "auto.commit.interval.ms": 1_000,
        "enable.auto.offset.store": False,
        # A member that keeps a partition keeps its position in it.
        "partition.assignment.strategy": "cooperative-sticky",
        "auto.offset.reset": "earliest",
    }


def administrator(connection: KafkaConnection) -> Configuration:
    """Return the configuration of a client that describes and changes topics; its user reports faults."""
    return {
        **_client(connection, "millrace-admin"),
        # It is mostly used while a broker starts.
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
        # Aborted records must not be decided on.
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
