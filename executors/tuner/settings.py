"""The settings of the runner `tuner`: environment variables `MILLRACE_*`, besides those of its node."""

from typing import Annotated

from pydantic import Field

from executors.settings import BaseModelSettings, GangSettings, ThrottledSettings
from schemas.service_base import SHORTEST_S


class TunerSettings(GangSettings, BaseModelSettings, ThrottledSettings):
    """Settings of the runner."""

    micro_batch_size: Annotated[int, Field(ge=1, le=4_096)] = 8
    """Most sequences per pass of a rank on a CPU. On CUDA the number that fits is measured."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Part of a GPU's free memory that a micro-batch may need."""
    evaluation_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Most validation records of an evaluation: the first of the file."""
    evaluation_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the time that evaluations within an epoch may take; those at its end always run."""
    prepared_batches: Annotated[int, Field(ge=1, le=1_024)] = 4
    """Batches that a data loader has tokenised when it is ready."""
    kept_tokens: Annotated[int, Field(ge=0, le=10**10)] = 16_000_000
    """Tokens that a data loader keeps, so that later epochs need not tokenise again."""

    join_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 120.0
    """Time that ranks wait for the others of their task."""
