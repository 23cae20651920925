"""The settings of the runner `moe`: environment variables `MILLRACE_*`, besides those of its node."""

from typing import Annotated

from pydantic import Field

from executors.settings import JobSettings
from schemas.service_base import SHORTEST_S


class MoeSettings(JobSettings):
    """Settings of the runner."""

    expert_memory_gib: Annotated[float, Field(gt=0, le=1_048_576)] | None = None
    """Memory of its device for the experts of a training rank (GiB); those that do not fit are in the host's
    memory, and are copied to the device in turn. Default: on a CUDA device three quarters of the memory that
    the rest of the model leaves free, on a CPU as much as they need."""
    peer_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 60.0
    """Longest wait of a rank for another in a collective. A stopped or disconnected rank fails the run after
    that time; one that has ended does so at once."""
