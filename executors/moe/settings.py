"""The settings of the runner `moe`: environment variables `MILLRACE_*`, beside those of its node."""

from pathlib import Path
from typing import Annotated, Literal

from platformdirs import user_data_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

Device = Literal["cpu", "cuda"]


class MoeSettings(BaseSettings):
    """How the runner works. Units are in the names; what other runners read, too, means the same to them."""

    model_config = SettingsConfigDict(
        env_prefix="MILLRACE_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    model_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "models")
    """Where the Hugging Face directories of jobs' models lie. Must exist, with the same on every node."""
    dataset_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "datasets")
    """Where the datasets of jobs lie. Must exist, with the same on every node."""

    device: Device = "cpu"
    """Where torch computes. With `cuda`, each rank has one of the machine's devices to itself."""
    gpus: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """Ranks that the node has room for, each with one GPU; all CUDA devices, or on a CPU all cores, if not
    given."""
    threads: Annotated[int, Field(ge=1, le=1_024)] = 1
    """CPU threads of torch in each rank."""
    worker_host: str = "127.0.0.1"
    """The address at which ranks of other nodes reach those of this one; the default serves nodes of one
    machine only."""

    expert_memory_gib: Annotated[float, Field(gt=0, le=1_048_576)] | None = None
    """How much of its device's memory the experts of a rank that trains may take; those that do not fit are
    in the host's memory, and come by turns. If it is not given: on a CUDA device three quarters of what is
    free beside the rest of the model, on a CPU as much as they need."""
    checkpoint_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Seconds after which a job that trains is checkpointed, between two steps."""
    checkpoint_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """How long a job that starts anew waits for the checkpoint that the cell knows of."""
    progress_s: Annotated[float, Field(gt=0, le=3_600)] = 5.0
    """Seconds between two reports of how far a job is; one that trains reports each checkpoint, too."""
    join_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """How long ranks wait for the others of their job to load the model and to come."""
    collective_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """How long a rank waits for another in a collective. One that is stopped or cut off fails the run after
    that time; one that has ended does so at once."""
    release_grace_s: Annotated[float, Field(gt=0, le=3_600)] = 60.0
    """How long ranks that are to go may take."""
    stop_grace_s: Annotated[float, Field(gt=0, le=3_600)] = 20.0
    """How long they may take where the node stops."""
