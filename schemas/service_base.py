"""Common parts of all services: the settings of their connection to Kafka, their own log, and background
processes."""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
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
from schemas.outages import OutageFilter
from schemas.text import plain

TopicPrefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Host = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,252})|[0-9A-Fa-f:.]{2,45})$")
]
"""Name or address of a machine; an IPv6 address without brackets."""
SHORTEST_S = 0.01
"""Shortest interval of a setting: more frequent work would use a whole core."""

_LEAST_PRIORITY = 19


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
