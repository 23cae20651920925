"""The settings that every service has: how it reaches the log that its records travel over."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.base import Identifier

TopicPrefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class ServiceSettings(BaseSettings):
    """How one process runs: environment variables `MILLRACE_*`. Units are in the names."""

    model_config = SettingsConfigDict(
        env_prefix="MILLRACE_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    bootstrap_servers: str = "127.0.0.1:9092"
    """Kafka's addresses, `host:port`, separated by commas."""
    topic_prefix: TopicPrefix = "millrace"
    node_partitions: dict[Identifier, Annotated[int, Field(ge=0)]] = {}
    """Partition of `commands` by node, the same for those who write and those who read it; the hash of the
    node's id where it is not given."""
    delivery_timeout_s: Annotated[float, Field(ge=10, le=600)] = 60.0
    """A record that the broker does not confirm for longer ends the process; nothing is acknowledged."""
    stop_timeout_s: Annotated[float, Field(gt=0, le=600)] = 20.0
    """How long an orderly stop may take to hand over what is under way."""
    log_level: LogLevel = "INFO"
