"""Settings of the broker, from the environment."""

import os
from pathlib import Path

from platformdirs import user_cache_path, user_data_path
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.kafka_connection import ENVIRONMENT_PREFIX
from schemas.service_base import SETTINGS_FAULTS, SHORTEST_S, described_fault
from streams.kafka.faults import BrokerError

_BYTES_PER_MIB = 1024 * 1024


class BrokerSettings(BaseSettings):
    """Address of a broker, or settings to run one: each field is the variable `MILLRACE_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True)

    bootstrap_servers: str | None = Field(
        None, min_length=1, description="A running cluster to use as it is."
    )
    bootstrap_timeout_s: float = Field(15.0, ge=SHORTEST_S, description="For that cluster to answer.")
    broker_data_dir: Path = Field(
        default_factory=lambda: user_data_path("millrace") / "broker",
        description="Where our own broker keeps its data between runs.",
    )
    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("millrace"), description="Where Kafka's jars are kept."
    )
    broker_secure: bool = Field(
        False, description="Run our own broker with TLS, SASL and access control; one that ever was stays so."
    )
    broker_port: int = Field(0, ge=0, le=65535, description="Port on 127.0.0.1; 0 takes a free one.")
    broker_heap_mib: int = Field(512, ge=256, description="Heap of the local broker.")
    broker_start_timeout_s: float = Field(60.0, ge=SHORTEST_S, description="From start to the first answer.")
    broker_stop_timeout_s: float = Field(
        10.0, ge=SHORTEST_S, description="For an orderly stop, before it is killed."
    )
    broker_download_timeout_s: float = Field(600.0, ge=SHORTEST_S, description="For Kafka's jars to arrive.")
    maven_repository: str | None = Field(
        None,
        pattern=r"^(https?|file)://[^@\s]+$",
        description="Where Kafka's jars are fetched from, in place of Maven Central and its mirrors.",
    )

    @field_validator("broker_heap_mib")
    @classmethod
    def _check_memory(cls, heap_mib: int) -> int:
        memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _BYTES_PER_MIB
        if heap_mib > memory_mib:
            raise ValueError(f"{heap_mib} MiB is more than the {memory_mib} MiB of memory of this machine")
        return heap_mib


def broker_settings() -> BrokerSettings:
    """Return the settings in the environment.

    Raises:
        BrokerError: a setting is invalid.
    """
    try:
        return BrokerSettings()
    except SETTINGS_FAULTS as error:
        raise BrokerError(f"settings: {described_fault(error)}") from None
