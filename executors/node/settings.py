"""The settings of an executor: environment variables `MILLRACE_*`."""

from pathlib import Path
from typing import Annotated

from platformdirs import user_data_path
from pydantic import Field

from schemas.base import Identifier
from schemas.fleet import RunnerNames
from schemas.services import ServiceSettings


class ExecutorSettings(ServiceSettings):
    """How one executor process runs."""

    cell: Identifier
    """The cell whose commands are obeyed."""
    node: Identifier
    """The node that this process serves; one process at a time."""
    runners: RunnerNames = ("lora",)
    """What it can obey, of the runners that are installed; they share its time in turn."""

    base_model: Identifier = "tiny-llama"
    """The base model as the node's zone calls it."""
    base_model_dir: Path | None = None
    """Its local Hugging Face directory; a small Llama is made on the first start if not given."""
    dataset_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "datasets")
    """Where the datasets of jobs lie. Must exist."""
    output_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "adapters")
    """Where finished adapters go, `<cell>/<job_id>/` each. Cells may share it."""
    state_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "executors")
    """Checkpoints and what the node has applied. Shared by the executors of a zone, so that jobs can move."""

    device: str = "cpu"
    """Where torch computes: `cpu`, `cuda` or `cuda:N`."""
    threads: Annotated[int, Field(ge=1, le=1_024)] = 1
    """CPU threads of torch."""
    parked_runs: Annotated[int, Field(ge=0, le=10_000)] = 16
    """Suspended jobs whose state stays in memory, so that they come back without reading a checkpoint."""

    least_free_mib: Annotated[int, Field(ge=0, le=1_000_000_000)] = 64
    """Free space below which the node goes offline, besides what the checkpoints of its runs need."""

    checkpoint_steps: Annotated[int, Field(ge=1)] = 200
    """Steps of a job after which it is checkpointed at the latest."""
    checkpoint_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Seconds after which it is checkpointed at the latest."""
    checkpoint_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """How long a job waits for the checkpoint of the node that it comes from."""
    progress_s: Annotated[float, Field(gt=0, le=3_600)] = 5.0
    """Seconds between two reports of a job that trains."""
    node_heartbeat_s: Annotated[float, Field(gt=0, le=3_600)] = 5.0
    """Seconds between two heartbeats; several must fit into the cell's `node_timeout_s`."""
