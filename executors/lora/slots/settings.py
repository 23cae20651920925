"""The settings of the runner `lora`: environment variables `MILLRACE_*`, beside those of its node."""

from pathlib import Path
from typing import Annotated

from platformdirs import user_data_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.kafka_connection import ENVIRONMENT_PREFIX
from schemas.services import SHORTEST_S


class LoraSettings(BaseSettings):
    """Settings of the runner. Units are in the names."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    base_model_dir: Path | None = None
    """The Hugging Face directory of the base model; a small Llama is made on the first start if not given."""
    base_model_address: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Name by which users load the base model, such as that on the Hugging Face hub: published adapters name
    it. `MILLRACE_BASE_MODEL` if not given."""
    dataset_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "datasets")
    """Where the datasets of jobs lie. Must exist."""

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")] = "cpu"
    """Where torch computes: `cpu`, `cuda` or `cuda:N`."""
    threads: Annotated[int, Field(ge=1, le=1_024)] = 1
    """CPU threads of torch."""
    parked_runs: Annotated[int, Field(ge=0, le=10_000)] = 16
    """Suspended jobs whose state stays in memory, so that they come back without reading a checkpoint."""

    checkpoint_steps: Annotated[int, Field(ge=1)] = 200
    """Steps of a job after which it is checkpointed at the latest."""
    checkpoint_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 60.0
    """Seconds after which it is checkpointed at the latest."""
    checkpoint_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """Wait of a job for the checkpoint of the node that it comes from, up to a quarter of its slot."""
    progress_s: Annotated[float, Field(ge=0, le=3_600)] = 5.0
    """Seconds between two reports of a job that trains; 0 reports each step."""
