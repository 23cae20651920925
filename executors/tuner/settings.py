"""The settings of the runner `tuner`: environment variables `MILLRACE_*`, beside those of its node."""

from pathlib import Path
from typing import Annotated, Literal

from platformdirs import user_data_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

Device = Literal["cpu", "cuda"]


class TunerSettings(BaseSettings):
    """How the runner trains. Units are in the names; what other runners read too means the same to them."""

    model_config = SettingsConfigDict(
        env_prefix="MILLRACE_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    base_model_dir: Path | None = None
    """The Hugging Face directory of the base model; a small Llama is made on the first start if not given."""
    dataset_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "datasets")
    """Where the datasets of jobs lie. Must exist, with the same on every node."""

    device: Device = "cpu"
    """Where torch computes. With `cuda`, each worker process has one of the machine's devices to itself."""
    gpus: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """Worker processes, each with one GPU and the base model; all CUDA devices, or on a CPU all cores, if not
    given."""
    threads: Annotated[int, Field(ge=1, le=1_024)] = 1
    """CPU threads of torch in each worker process."""
    worker_host: str = "127.0.0.1"
    """The address at which workers of other nodes reach those of this one; the default serves nodes of one
    machine only."""

    micro_batch_size: Annotated[int, Field(ge=1, le=4_096)] = 8
    """Sequences that a worker takes at a time on a CPU, at most. On CUDA it is measured what fits."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Of a GPU's free memory, how much a micro-batch may need."""
    evaluation_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Validation records that an evaluation uses, at most: the first of the file."""
    evaluation_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the time that evaluations within an epoch may take; those at its end are always made."""
    prepared_batches: Annotated[int, Field(ge=1, le=1_024)] = 4
    """Batches that a data loader has tokenised when it is ready."""
    kept_tokens: Annotated[int, Field(ge=0, le=10**10)] = 16_000_000
    """Tokens that a data loader keeps, so that later epochs need not tokenise again."""

    checkpoint_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Seconds after which a task is checkpointed, between two steps."""
    checkpoint_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """How long a job waits for the checkpoint that the cell knows of."""
    join_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    """How long workers wait for the others of their task."""
    peer_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long a worker waits for another's part of a step."""
    stop_grace_s: Annotated[float, Field(gt=0, le=3_600)] = 20.0
    """How long tasks may take to end where the node stops."""
