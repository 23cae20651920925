"""Readable errors for a Kafka that does not answer, or not as it should."""

import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from schemas.errors import ReadableError
from schemas.kafka_connection import KafkaConnection
from schemas.services import EXIT_UNANSWERED


class BrokerError(ReadableError):
    """No usable broker; the message names what is wrong, where, and what to do.

    Further lines, if any, are the end of the broker's own log.
    """

    ends_with_log = True


class UnansweredError(BrokerError):
    """No broker answers at the address."""

    exit_status = EXIT_UNANSWERED


class TopicError(BrokerError):
    """Topics cannot be created, or are not what they must be; the message lists every difference."""


LEADER_ERRORS = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        # The client has heard of a leader sooner, or later, than the broker itself.
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
"""What a broker answers for a moment while a partition that is new, or that has moved, gets its leader."""
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_AFTER_SECONDS_S = 2.0
"""How long a fault that a starting broker may show too has to last."""
_CERTIFICATE_TIMEOUT_S = 2.0
_DROPPED = "Disconnected"
"""In a reason: the other side has closed the connection in the middle of a handshake."""
_MECHANISMS = re.compile(r"supported mechanisms: (.+?)(?: \(after|$)")
_PLACE = re.compile(r"^\S+://\S+: ")
_DURATION = re.compile(r" \(after \d+ms in state \w+\)(?:, \d+ identical error\(s\) suppressed)?$")


class ConnectionFaults:
    """Why a client is not connected, as far as it has said. `note` is its `error_cb`."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._dropped_since_s: float | None = None
        self.reason = ""
        """What the client has said last; empty if nothing."""
        self.lasting: str | None = None
        """The line for a fault that goes on until somebody changes something; None while there is none."""

    def note(self, error: KafkaError) -> None:
        """Take in what the client reports."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            # Said alone, without any other reason, of a connection that was made and then dropped.
            self._dropped_since_s = self._dropped_since_s or time.monotonic()
            return
        self.reason = _DURATION.sub("", _PLACE.sub("", error.str()))
        if self.lasting is None:
            self.lasting = _lasting(self._connection, error.code(), self.reason)

    @property
    def likely(self) -> str | None:
        """The line for a fault that a broker on its way up shows too, if it has gone on for a while."""
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
def fatal_errors_told() -> Iterator[None]:
    """Have an error that ends a producer come as itself out of `poll` or `flush`.

    The client raises it in the middle of serving callbacks; where one is called after that, Python finds an
    exception that nobody has handled and raises SystemError because of it, or loses it on the way.

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
        raise KafkaException(KafkaError(KafkaError._FATAL, "the client has not said why")) from error


def denial(connection: KafkaConnection, error: KafkaError, what: str) -> str | None:
    """The line for an answer that denies a right; None if `error` is another answer.

    Args:
        what: what was tried, such as `read topic millrace.ledger`.
    """
    if error.code() not in _DENIED:
        return None
    return (
        f"Kafka at {connection.bootstrap_servers}: {_principal(connection)} may not {what}: "
        "`millrace topics acls` shows which role may"
    )


def told(connection: KafkaConnection, error: KafkaError, what: str) -> str:
    """A line for any answer that is an error: what was tried, where, and why it did not work."""
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
            return f"Kafka at {servers}: no token that it takes ({text}): see MILLRACE_KAFKA_TOKEN_URL"
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
    """Why the certificate does not verify, which librdkafka does not say: it is asked for once more."""
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
    """What OpenSSL says of the certificate at the first address that it refuses; empty if it refuses none."""
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
