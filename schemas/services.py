"""Common parts of all services: the settings of their connection to Kafka, and their own log."""

import logging
from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.base import Identifier
from schemas.kafka_connection import KafkaConnection
from schemas.text import plain

TopicPrefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class ServiceSettings(BaseSettings, KafkaConnection):
    """How one process runs: environment variables `MILLRACE_*`. Units are in the names."""

    model_config = SettingsConfigDict(
        env_prefix="MILLRACE_",
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
    stop_timeout_s: Annotated[float, Field(gt=0, le=600)] = 20.0
    """How long an orderly stop may take to hand over what is under way."""
    log_level: LogLevel = "INFO"


class PlainFormatter(logging.Formatter):
    """Time, level, logger and message; text from other users is escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is the library's
        record.message = plain(record.message)
        return super().formatMessage(record)


def begin_log(level: str) -> None:
    """Write what is logged from now on, at this level or above."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    logging.basicConfig(level=level, handlers=[handler])
