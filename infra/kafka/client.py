"""Asking a broker whether it is there."""

import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from infra.kafka.errors import BrokerError

_ASK_TIMEOUT_S = 0.5


def admin_client(bootstrap_servers: str) -> AdminClient:
    """Return an admin client that reconnects fast and leaves the reporting of failures to its user."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "millrace-admin",
            "reconnect.backoff.max.ms": 250,
            "log_level": 0,
        }
    )


def wait_until_answering(
    bootstrap_servers: str, timeout_s: float, check_alive: Callable[[], None] = lambda: None
) -> None:
    """Return as soon as a broker answers at `bootstrap_servers`.

    `check_alive` is called again and again; what it raises ends the wait.

    Raises:
        BrokerError: none answers within `timeout_s`.
    """
    admin = admin_client(bootstrap_servers)
    deadline_s = time.monotonic() + timeout_s
    while True:
        check_alive()
        try:
            if admin.list_topics(timeout=_ASK_TIMEOUT_S).brokers:
                return
        except KafkaException as error:
            reason = error.args[0].str()
        else:
            reason = "no broker has joined the cluster"
        if time.monotonic() >= deadline_s:
            raise BrokerError(
                f"No Kafka broker answers at {bootstrap_servers} within {timeout_s:g} s ({reason})"
            )
