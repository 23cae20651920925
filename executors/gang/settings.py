"""The settings that runners with worker processes share: environment variables `MILLRACE_*`."""

from pathlib import Path
from typing import Annotated, Literal

from platformdirs import user_data_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.kafka_connection import ENVIRONMENT_PREFIX
from schemas.services import SHORTEST_S, Host

Device = Literal["cpu", "cuda"]


class GangSettings(BaseSettings):
    """What each of them reads, and means the same by. Units are in the names."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    dataset_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "datasets")
    """Where the datasets of jobs lie. Must exist, with the same on every node."""

    device: Device = "cpu"
    """Where torch computes. With `cuda`, each worker process has one of the machine's devices to itself."""
    gpus: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """Worker processes that the node has room for, each with one GPU; all CUDA devices, or on a CPU all
    cores, if not given."""
    threads: Annotated[int, Field(ge=1, le=1_024)] = 1
    """CPU threads of torch in each worker process."""
    worker_host: Host = "127.0.0.1"
    """The address at which workers of other nodes reach those of this one; the default serves nodes of one
    machine only."""

    checkpoint_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 60.0
    """Seconds after which what is trained is checkpointed, between two steps."""
    checkpoint_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """How long a job that starts anew waits for the checkpoint that the cell knows of."""
    join_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 300.0
    """How long workers wait for the others of their job to load the model and to come."""
    stop_grace_s: Annotated[float, Field(ge=SHORTEST_S, le=3_600)] = 20.0
    """How long workers may take to end where the node stops."""


class JobSettings(GangSettings):
    """What runners read besides whose worker processes are each begun for one job, and load its model."""

    model_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "models")
    """Where the Hugging Face directories of jobs' models lie. Must exist, with the same on every node."""

    progress_s: Annotated[float, Field(ge=0, le=3_600)] = 5.0
    """Seconds between two reports of how far a job is, 0 for each step; one that keeps checkpoints reports
    each, too."""
    release_grace_s: Annotated[float, Field(ge=SHORTEST_S, le=3_600)] = 60.0
    """How long workers that are to go may take where the command does not say."""
