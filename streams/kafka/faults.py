"""Readable errors for Kafka brokers that do not answer, or answer with an error."""

import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from schemas.errors import ReadableError
from schemas.kafka_connection import KafkaConnection
from schemas.service_base import EXIT_UNANSWERED


class BrokerError(ReadableError):
    """No usable broker; the message states the fault, the address and the remedy.

    Further lines, if any, are the end of the broker's log.
    """

    ends_with_log = True


class UnansweredError(BrokerError):
    """No broker answers at the address."""

    exit_status = EXIT_UNANSWERED


class TopicError(BrokerError):
    """Topics cannot be created, or differ from their specification; the message lists every difference."""


LEADER_ERRORS = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        # The client learned of a new leader before the broker, or after it.
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
"""Transient errors while a partition that is new, or that has moved, gets its leader."""
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_AFTER_SECONDS_S = 2.0
"""Time after which a fault counts as lasting; a starting broker shows the same faults for a while."""
_CERTIFICATE_TIMEOUT_S = 2.0
_DROPPED = "Disconnected"
"""Part of a reason: the other side closed the connection during a handshake."""
_MECHANISMS = re.compile(r"supported mechanisms: (.+?)(?: \(after|$)")
_PLACE = re.compile(r"^\S+://\S+: ")
_DURATION = re.compile(r" \(after \d+ms in state \w+\)(?:, \d+ identical error\(s\) suppressed)?$")


class ConnectionFaults:
    """Reasons why a client is not connected, as it reports them. `note` is its `error_cb`."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._dropped_since_s: float | None = None
        self.reason = ""
        """Latest report of the client; empty before the first."""
        self.lasting: str | None = None
        """Message for a fault that lasts until the configuration changes; None without one."""

    def note(self, error: KafkaError) -> None:
        """Note an error that the client reports."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            # Reported without another reason for a connection that was made and then dropped.
            self._dropped_since_s = self._dropped_since_s or time.monotonic()
            return
        self.reason = _DURATION.sub("", _PLACE.sub("", error.str()))
        if self.lasting is None:
            self.lasting = _lasting(self._connection, error.code(), self.reason)

    @property
    def likely(self) -> str | None:
        """Message for a fault that a starting broker shows too, if it has lasted for a while; None without
        one."""
        since_s = self._dropped_since_s
        if since_s is None or time.monotonic() - since_s < _AFTER_SECONDS_S:
            return None
        if self.reason and _DROPPED not in self.reason:
            return None
        return (
            f"Kafka at {self._connection.bootstrap_servers} drops connections under "
            f"{self._connection.kafka_security_protocol}: set MILLRACE_KAFKA_SECURITY_PROTOCOL to what its "
            "listener speaks"
        )


@contextmanager
def fatal_errors_raised() -> Iterator[None]:
    """Make `poll` or `flush` raise an error that ends a producer as itself.

    The client raises it while it serves callbacks. If another callback is called after that, Python finds an
    unhandled exception and raises SystemError because of it, or loses it.

    Raises:
        KafkaException: the error that ended the producer.
    """
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KafkaException):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise KafkaException(
            KafkaError(KafkaError._FATAL, "the client has not reported the reason")
        ) from error


def denial(connection: KafkaConnection, error: KafkaError, what: str) -> str | None:
    """Return the message for an answer that denies a right; None for another error.

    Args:
        what: the attempted action, such as `read topic millrace.ledger`.
    """
    if error.code() not in _DENIED:
        return None
    return (
        f"Kafka at {connection.bootstrap_servers}: {_principal(connection)} may not {what}: "
        "`millrace topics acls` shows which role may"
    )


def described_error(connection: KafkaConnection, error: KafkaError, what: str) -> str:
    """Return the message for an error: the attempted action `what`, the address and the reason."""
    return denial(connection, error, what) or (
        f"Kafka at {connection.bootstrap_servers}: cannot {what}: {error.str()}"
    )


def _lasting(connection: KafkaConnection, code: int, text: str) -> str | None:
    servers = connection.bootstrap_servers
    if code == KafkaError._AUTHENTICATION:
        offered = _MECHANISMS.search(text)
        if offered is not None:
            return (
                f"Kafka at {servers} does not have SASL mechanism {connection.kafka_sasl_mechanism}, it has "
                f"{', '.join(sorted(offered[1].split(',')))}: set MILLRACE_KAFKA_SASL_MECHANISM"
            )
        if connection.kafka_sasl_mechanism == "OAUTHBEARER":
            return f"Kafka at {servers}: no token that it accepts ({text}): see MILLRACE_KAFKA_TOKEN_URL"
        return (
            f"Kafka at {servers} does not let {_principal(connection)} in: wrong password, or no such user "
            f"under {connection.kafka_sasl_mechanism}: see MILLRACE_KAFKA_USERNAME and "
            "MILLRACE_KAFKA_PASSWORD_FILE"
        )
    if "alert bad certificate" in text or "alert certificate required" in text:
        return (
            f"Kafka at {servers} asks for a client certificate that it trusts: set "
            "MILLRACE_KAFKA_CERTIFICATE_FILE and MILLRACE_KAFKA_KEY_FILE"
        )
    if code != KafkaError._SSL or _DROPPED in text:
        return None
    if "certificate" in text and "verif" in text:
        return _certificate_fault(connection)
    return f"No TLS with Kafka at {servers} ({text}): see MILLRACE_KAFKA_SECURITY_PROTOCOL"


def _certificate_fault(connection: KafkaConnection) -> str:
    """Return the reason why the certificate does not verify, by another handshake: librdkafka reports
    none."""
    of_kafka = f"The certificate of Kafka at {connection.bootstrap_servers}"
    reason = _verification_error(connection)
    if "mismatch" in reason:
        return (
            f"{of_kafka} is for another host ({reason}): use the name that it is for, or set "
            "MILLRACE_KAFKA_VERIFY_HOSTNAME=false"
        )
    if "expired" in reason or "not yet valid" in reason:
        return f"{of_kafka} does not verify ({reason}): have it renewed, or set this machine's clock"
    why = f" ({reason})" if reason else ""
    return f"{of_kafka} does not verify{why}: set MILLRACE_KAFKA_CA_FILE to the authority that signed it"


def _verification_error(connection: KafkaConnection) -> str:
    """Return OpenSSL's error for the certificate of the first refused address; empty if none is refused."""
    authority = connection.kafka_ca_file
    context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    context.check_hostname = connection.kafka_verify_hostname
    for address in connection.bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            with (
                socket.create_connection((host, int(port)), _CERTIFICATE_TIMEOUT_S) as plain,
                context.wrap_socket(plain, server_hostname=host),
            ):
                pass
        except ssl.SSLCertVerificationError as error:
            return str(error.verify_message)
        except (OSError, ValueError):
            continue
    return ""


def _principal(connection: KafkaConnection) -> str:
    if connection.uses_sasl:
        return f"user {connection.kafka_username}"
    return "the client certificate" if connection.kafka_certificate_file else "a client without a name"
