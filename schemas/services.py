"""Common parts of all services: the settings of their connection to Kafka, and their own log."""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from schemas.base import Identifier
from schemas.codec import describe
from schemas.extras import MissingExtraError, require_extra
from schemas.kafka_connection import ENVIRONMENT_PREFIX, KafkaConnection
from schemas.outages import OutageFilter
from schemas.text import plain

TopicPrefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Host = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,252})|[0-9A-Fa-f:.]{2,45})$")
]
"""A name or an address of a machine: an address of IPv6 without brackets."""
SHORTEST_S = 0.01
"""The shortest time that a setting may give: what is repeated more often takes a core."""


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
    """Partition of `commands` by node, the same for those who write and those who read it; the hash of the
    node's id where it is not given."""
    delivery_timeout_s: Annotated[float, Field(ge=10, le=600)] = 60.0
    """A record that the broker does not confirm for longer ends the process; nothing is acknowledged."""
    stop_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=600)] = 20.0
    """Time that an orderly stop may take to hand over what is under way."""
    log_level: LogLevel = "INFO"


SETTINGS_FAULTS = (ValidationError, SettingsError)
"""Errors of settings classes for variables that are invalid, or that are not JSON where they must be."""


def described_fault(error: ValidationError | SettingsError) -> str:
    """A fault of settings in one line, with the names of the environment variables."""
    if isinstance(error, ValidationError):
        return describe(error, ENVIRONMENT_PREFIX)
    # Its text has the variable's name among those of the library's classes.
    (field,) = re.findall(r'field "(\w+)"', str(error))
    return f"{ENVIRONMENT_PREFIX}{field.upper()}: no JSON"


class PlainFormatter(logging.Formatter):
    """Time, level, logger and message; text from other users is escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is the library's
        record.message = plain(record.message)
        return super().formatMessage(record)


def check_session(session_timeout_s: float, heartbeat_s: float) -> None:
    """See that a member of a group is not taken for dead between two heartbeats.

    Raises:
        ValueError: it would be.
    """
    if 2 * heartbeat_s > session_timeout_s:
        raise ValueError(
            f"heartbeat_s is {heartbeat_s:g}, more than half of session_timeout_s ({session_timeout_s:g})"
        )


EXIT_FAILED = 1
"""Something went wrong underway; started again, the service resumes where it was."""
EXIT_UNFIT = 2
"""Settings, files, topics or the rules at hand are not fit: starting the service again does not help."""
EXIT_UNANSWERED = 75
"""No broker answers: started again, the service works once one does. EX_TEMPFAIL of sysexits.h."""


def require_extra_of(service: str, extra: str) -> None:
    """See that the extra is installed that a service needs.

    Raises:
        SystemExit: with `EXIT_UNFIT` if it is not; the reason is a line on standard error.
    """
    try:
        require_extra(extra)
    except MissingExtraError as error:
        sys.stderr.write(f"millrace {service}: {error}\n")
        raise SystemExit(EXIT_UNFIT) from None


OTHERS = 0o077
"""The umask under which files are for their owner alone."""


def begin_service(settings: ServiceSettings) -> None:
    """Prepare the process: its log, and the rights of the files that it and its children make.

    Where Kafka is secured, files are for their owner alone: they hold what the topics' rights protect.
    """
    if settings.kafka_security_protocol != "PLAINTEXT":
        os.umask(OTHERS)
    begin_log(settings.log_level)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Set an event on SIGTERM or SIGINT, for the length of the block. Call it from the main thread."""
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
    """Have this process write its log to standard error, in the form of all services."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    handler.addFilter(OutageFilter())
    logging.basicConfig(level=level, handlers=[handler])
