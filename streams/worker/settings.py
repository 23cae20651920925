"""The settings of a worker: environment variables `MILLRACE_*`."""

from pathlib import Path
from typing import Annotated, Self

from platformdirs import user_data_path
from pydantic import Field, model_validator

from schemas.base import Identifier
from schemas.cells import MAX_SNAPSHOT_BYTES
from schemas.service_base import SHORTEST_S, Host, LogLevel, ServiceSettings, check_session

LARGEST_RECORD_BYTES = MAX_SNAPSHOT_BYTES + 1024 * 1024
"""Largest record of both of the worker's clients: a snapshot, with what Kafka and the headers add."""


class WorkerSettings(ServiceSettings):
    """Settings of a worker process."""

    data_dir: Path = Field(default_factory=lambda: user_data_path("millrace"))
    """Folder of Faust's files; the worker's state is only on Kafka."""
    cells_file: Path = Path("cells.yaml")
    """File of the cells that this deployment serves; events of any other cell are refused."""

    worker_group: Identifier = "cells"
    """Group of workers that share the cells; the consumer group is `<prefix>.<group>`."""
    worker_name: Identifier | None = None
    """Lasting name, one per worker at a time. A worker that is restarted under it gets its partitions back at
    once, without waiting for the session timeout. Until then no other worker gets them, even after an orderly
    stop."""
    session_timeout_s: Annotated[float, Field(ge=1, le=60)] = 8.0
    """Silence after which a worker counts as stopped and its cells move."""
    heartbeat_s: Annotated[float, Field(ge=SHORTEST_S, le=20)] = 2.0
    standby_replicas: Annotated[int, Field(ge=0, le=4)] = 0
    """Number of workers that keep a warm copy of each snapshot; leave it at 0 with a single worker."""

    snapshot_every_events: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """Most ledger events of this worker between snapshots of the changed cells."""
    snapshot_every_s: Annotated[float, Field(ge=SHORTEST_S, le=600)] = 5.0
    """Longest time between snapshots of the changed cells."""
    intake_buffer_events: Annotated[int, Field(ge=1, le=100_000)] = 4_096
    """Most unconfirmed records of intake; further ones wait."""
    intake_waiting_mib: Annotated[int, Field(ge=1, le=65_536)] = 192
    """Memory for queued events; while it is full, the partition with most of them is not read."""
    intake_writer_events_per_s: Annotated[float, Field(ge=SHORTEST_S, le=1e6)] = 100.0
    """Highest rate at which a writer's events enter the ledger by their times; the events of a faster writer
    are delayed."""
    max_tick_ahead_s: Annotated[float, Field(ge=SHORTEST_S)] = 3_600.0
    """Most time of a tick after its record's timestamp; a later tick is refused, since a cell's clock never
    goes back. `inf` admits every tick."""

    await_kernels: bool = False
    """Whether all decisions wait until the kernels of the cells' policies are compiled. By default only large
    zones wait, and the kernels of others are interpreted meanwhile."""

    validate_cells: Annotated[bool, Field(validation_alias="MILLRACE_VALIDATE")] = False
    """Whether to check a cell's invariants after every event, and to end if one is broken. The check takes
    milliseconds per event and large zone."""

    web_enabled: bool = False
    """Whether to serve Faust's own web pages, which have no authentication."""
    web_host: Host = "127.0.0.1"
    """Address of the web pages; by default only users of this machine reach it."""
    web_port: Annotated[int, Field(ge=1, le=65_535)] = 6_066
    log_level: LogLevel = "WARNING"

    @model_validator(mode="after")
    def _check_session(self) -> Self:
        check_session(self.session_timeout_s, self.heartbeat_s)
        return self
