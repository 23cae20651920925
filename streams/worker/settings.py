"""The settings of a worker: environment variables `MILLRACE_*`."""

from pathlib import Path
from typing import Annotated, Self

from platformdirs import user_data_path
from pydantic import Field, model_validator

from schemas.base import Identifier
from schemas.cells import MAX_SNAPSHOT_BYTES
from schemas.services import SHORTEST_S, Host, LogLevel, ServiceSettings, check_session

LARGEST_RECORD_BYTES = MAX_SNAPSHOT_BYTES + 1024 * 1024
"""Both of the worker's clients are sized for a snapshot, and what Kafka and the headers may add."""


class WorkerSettings(ServiceSettings):
    """How one worker process runs."""

    data_dir: Path = Field(default_factory=lambda: user_data_path("millrace"))
    """Where Faust keeps its files; the worker's state is on Kafka alone."""
    cells_file: Path = Path("cells.yaml")
    """The cells that this deployment serves; events of any other cell are refused."""

    worker_group: Identifier = "cells"
    """Workers of one group share the cells among them; the consumer group is `<prefix>.<group>`."""
    worker_name: Identifier | None = None
    """A lasting name, one per worker at a time: a worker that is started again under it takes its partitions
    back at once, without waiting for the session timeout. On the other hand nobody else takes them before,
    not even when the worker stops in good order."""
    session_timeout_s: Annotated[float, Field(ge=1, le=60)] = 8.0
    """A worker that is silent for longer is considered dead, and its cells move."""
    heartbeat_s: Annotated[float, Field(ge=SHORTEST_S, le=20)] = 2.0
    standby_replicas: Annotated[int, Field(ge=0, le=4)] = 0
    """Workers that keep a warm copy of each snapshot; leave it at 0 with a single worker."""

    snapshot_every_events: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """Ledger events of this worker after which the changed cells are written down at the latest."""
    snapshot_every_s: Annotated[float, Field(ge=SHORTEST_S, le=600)] = 5.0
    """Seconds after which the changed cells are written down at the latest."""
    intake_buffer_events: Annotated[int, Field(ge=1, le=100_000)] = 4_096
    """Records on their way from intake to the broker's confirmation; more wait."""
    intake_waiting_mib: Annotated[int, Field(ge=1, le=65_536)] = 192
    """Memory for events that wait for their turn; while it is full, the partition that most of them came from
    is read no further."""
    intake_writer_events_per_s: Annotated[float, Field(ge=SHORTEST_S, le=1e6)] = 100.0
    """Up to this rate a writer's events enter the ledger by their times; faster ones let other writers'
    pass."""
    max_tick_ahead_s: Annotated[float, Field(ge=SHORTEST_S)] = 3_600.0
    """A tick that is further ahead of its record's timestamp is refused, for a cell's clock never goes back;
    `inf` lets every tick pass."""

    await_kernels: bool = False
    """Decide nothing before the kernels of the cells' policies are compiled. By default this is so for large
    zones alone; the kernels of others are interpreted meanwhile."""

    validate_cells: Annotated[bool, Field(validation_alias="MILLRACE_VALIDATE")] = False
    """Look after every event whether all holds that should always hold of a cell, and end if it does not. It
    takes milliseconds per event and large zone."""

    web_enabled: bool = False
    """Serve Faust's own web pages, which have no authentication."""
    web_host: Host = "127.0.0.1"
    """The address that they are served on: this machine's users alone, unless another is given."""
    web_port: Annotated[int, Field(ge=1, le=65_535)] = 6_066
    log_level: LogLevel = "WARNING"

    @model_validator(mode="after")
    def _check_session(self) -> Self:
        check_session(self.session_timeout_s, self.heartbeat_s)
        return self
