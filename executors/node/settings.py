"""The settings of a node: environment variables `MILLRACE_*`. Runners have further ones of their own."""

from pathlib import Path
from typing import Annotated

from platformdirs import user_data_path
from pydantic import Field

from schemas.base import Identifier
from schemas.fleet import RunnerNames
from schemas.service_base import SHORTEST_S, ServiceSettings

LONGEST_HEARTBEAT_S = 3_600.0


class ExecutorSettings(ServiceSettings):
    """Settings of one executor process."""

    cell: Identifier
    """The cell whose commands are obeyed."""
    node: Identifier
    """The node that this process serves; one process at a time."""
    runners: RunnerNames = ("lora",)
    """Names of the installed runners whose commands it obeys; they share its time in turn."""

    base_model: Identifier = "tiny-llama"
    """Id of the base model in the node's zone."""
    output_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "adapters")
    """Folder of finished adapters, `<cell>/<user>/<job_id>/` each. Cells may share it."""
    state_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "executors")
    """Folder of checkpoints and of the node's journal. Shared by the executors of a zone, so that jobs can
    move."""

    least_free_mib: Annotated[int, Field(ge=0, le=1_000_000_000)] = 64
    """Free space below which the node goes offline, besides what the checkpoints of its runs need."""
    node_heartbeat_s: Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_HEARTBEAT_S)] = 5.0
    """Interval of heartbeats (s); several must fit into the cell's `node_timeout_s`."""
