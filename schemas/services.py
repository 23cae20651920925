"""Common parts of all services: the settings of their connection to Kafka, their own log, one line in it for
each outage of Kafka, and background processes.
"""

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from schemas.base import Identifier
from schemas.codec import describe
from schemas.errors import MissingExtraError, require_extra
from schemas.kafka_connection import ENVIRONMENT_PREFIX, KafkaConnection
from schemas.text import plain

QUIET_S = 75.0
"""Time without a logged failure after which an outage is over.

It is longer than the longest pause between two log lines of one outage. A broker that refuses connections
fails an attempt every second, but librdkafka logs an identical error only every 30 s. A broker that accepts
connections and does not answer, such as a stopped process, fails a request only after librdkafka's
`socket.timeout.ms`, 60 s."""
_LOOK_EVERY_S = 1.0

_LIBRDKAFKA = frozenset({"FAIL", "ERROR", "SESSTMOUT", "HBFAIL", "COORD", "REQTMOUT", "GETPID"})
"""Facilities of librdkafka (the first argument of its log records) that report failed connections or
requests."""
_AIOKAFKA = re.compile(
    r"Unable (to )?connect|Unable to update metadata|Unable to request metadata|NodeNotReadyError|"
    r"KafkaConnectionError|KafkaTimeoutError|RequestTimedOutError|CoordinatorNotAvailable|"
    r"NotCoordinatorFor|StaleMetadata|oordinator dead|Heartbeat (failed|session expired|send request)|"
    r"Group Coordinator Request failed|OffsetCommit failed|Failed fetch (messages|offsets)|"
    r"(NotLeaderForPartition|LeaderNotAvailable)Error"
)

TopicPrefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Host = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,252})|[0-9A-Fa-f:.]{2,45})$")
]
"""Name or address of a machine; an IPv6 address without brackets."""
SHORTEST_S = 0.01
"""Shortest interval of a setting: more frequent work would use a whole core."""

_LEAST_PRIORITY = 19


class OutageFilter(logging.Filter):
    """Passes the first line of an outage of Kafka, drops the others, and logs its end. Others pass unchanged.

    The Kafka clients log every attempt to connect, tens of lines a second and process while a broker is down.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._logger = logging.getLogger(__name__)
        self._first_s: float | None = None
        """Time of the first logged failure; None without an outage. The outage itself began up to a request's
        timeout earlier."""
        self._last_s = 0.0
        self._left_out = 0
        self._level = logging.WARNING

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record; mark one that begins an outage."""
        if not _is_about_connection(record):
            return True
        with self._lock:
            if self._first_s is None:
                if record.levelno < logging.WARNING:
                    return True  # such as a connection that was idle for a long time
                self._first_s = self._last_s = self._monotonic_s()
                self._left_out, self._level = 0, record.levelno
                record.msg = f"Kafka is lost, further lines about it are left out: {record.getMessage()}"
                record.args = ()
                threading.Thread(target=self._watch, name="outage", daemon=True).start()
                return True
            self._last_s = self._monotonic_s()
            self._left_out += 1
            return False

    def conclude(self) -> bool:
        """Log the end of the outage if it is over. Return whether there is no outage."""
        with self._lock:
            first_s, left_out = self._first_s, self._left_out
            if first_s is not None and self._monotonic_s() - self._last_s < QUIET_S:
                return False
            self._first_s = None
        if first_s is not None:
            self._logger.log(
                self._level,
                "Kafka is back: no failure for %.0f s; from the first to the last were %.0f s, "
                "%d lines left out",
                QUIET_S,
                self._last_s - first_s,
                left_out,
            )
        return True

    def _watch(self) -> None:
        while not self.conclude():
            time.sleep(_LOOK_EVERY_S)


def _is_about_connection(record: logging.LogRecord) -> bool:
    if record.name.partition(".")[0] == "aiokafka":
        return record.levelno >= logging.WARNING and _AIOKAFKA.search(record.getMessage()) is not None
    return (
        record.msg == "%s [%s] %s"
        and isinstance(record.args, tuple)
        and record.args[:1] != ()
        and record.args[0] in _LIBRDKAFKA
    )


class ServiceSettings(BaseSettings, KafkaConnection):
    """Settings of one process: environment variables `MILLRACE_*`. Units are in the names."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    topic_prefix: TopicPrefix = "millrace"
    node_partitions: dict[Identifier, Annotated[int, Field(ge=0)]] = {}
    """Partition of `commands` by node, equal for its writers and readers; by the hash of the node's id if
    absent."""
    delivery_timeout_s: Annotated[float, Field(ge=10, le=600)] = 60.0
    """Time without the broker's confirmation of a record after which the process ends, without
    acknowledging."""
    stop_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=600)] = 20.0
    """Longest duration of an orderly stop."""
    log_level: LogLevel = "INFO"


SETTINGS_FAULTS = (ValidationError, SettingsError)
"""Errors of settings classes for variables that are invalid, or that must be JSON and are not."""


def described_fault(error: ValidationError | SettingsError) -> str:
    """Return the faults of settings in one line, with the names of the environment variables."""
    if isinstance(error, ValidationError):
        return describe(error, ENVIRONMENT_PREFIX)
    # Only the text of the error has the variable's name.
    (field,) = re.findall(r'field "(\w+)"', str(error))
    return f"{ENVIRONMENT_PREFIX}{field.upper()}: no JSON"


class PlainFormatter(logging.Formatter):
    """Format of log lines: time, level, logger and message, with foreign text escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is the library's
        record.message = plain(record.message)
        return super().formatMessage(record)


def check_session(session_timeout_s: float, heartbeat_s: float) -> None:
    """Check that the session of a group's member does not time out between two heartbeats.

    Raises:
        ValueError: it would.
    """
    if 2 * heartbeat_s > session_timeout_s:
        raise ValueError(
            f"heartbeat_s is {heartbeat_s:g}, more than half of session_timeout_s ({session_timeout_s:g})"
        )


EXIT_FAILED = 1
"""Exit status of a failure; after a restart, the service resumes."""
EXIT_UNFIT = 2
"""Exit status for invalid settings, files, topics or rules: a restart does not help."""
EXIT_UNANSWERED = 75
"""Exit status if no broker answers: a restart helps once one does. EX_TEMPFAIL of sysexits.h."""


def require_extra_of(service: str, extra: str) -> None:
    """Check that the extra of a service is installed.

    Raises:
        SystemExit: with `EXIT_UNFIT` if it is not; the reason is a line on standard error.
    """
    try:
        require_extra(extra)
    except MissingExtraError as error:
        sys.stderr.write(f"millrace {service}: {error}\n")
        raise SystemExit(EXIT_UNFIT) from None


OTHERS = 0o077
"""Umask by which only the owner may access files."""


def begin_service(settings: ServiceSettings) -> None:
    """Prepare the process: its log, and the permissions of files that it and its children create.

    If Kafka is secured, only the owner may access the files: they hold data that topics' rights protect.
    """
    if settings.kafka_security_protocol != "PLAINTEXT":
        os.umask(OTHERS)
    begin_log(settings.log_level)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Set an event on SIGTERM or SIGINT within the block. Call it from the main thread."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def begin_log(level: int | str) -> None:
    """Write the log of this process to standard error, in the format of all services."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    handler.addFilter(OutageFilter())
    logging.basicConfig(level=level, handlers=[handler])


def stay_in_background() -> None:
    """Run this process at the lowest priority, and end it when its standard input is closed."""
    os.nice(_LEAST_PRIORITY)
    # Linux may share the processor among sessions first, and then among the processes of each.
    os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LEAST_PRIORITY))
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # Not by the buffered reader, whose lock the interpreter needs at its end.
    os.read(sys.stdin.fileno(), 1)
    os._exit(EXIT_FAILED)
