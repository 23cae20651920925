"""The settings of the runner `lora`: environment variables `MILLRACE_*`, besides those of its node."""

from typing import Annotated

from pydantic import Field

from executors.settings import BaseModelSettings, ThrottledSettings


class LoraSettings(BaseModelSettings, ThrottledSettings):
    """Settings of the runner. Units are in the names."""

    parked_runs: Annotated[int, Field(ge=0, le=10_000)] = 16
    """Suspended jobs whose state stays in memory, so that they resume without reading a checkpoint."""
    checkpoint_steps: Annotated[int, Field(ge=1)] = 200
    """Steps after which a job is checkpointed at the latest."""
    progress_s: Annotated[float, Field(ge=0, le=3_600)] = 5.0
    """Interval of reports of a job that trains (s); 0 reports each step."""
