"""The settings of the runner `elastic`."""

from typing import Annotated

from pydantic import Field

from executors.settings import JobSettings


class ElasticSettings(JobSettings):
    """Settings of the runner `elastic`, besides those of all jobs. Units are in the names."""

    least_sequence_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Shortest time of a sequence in training (s), for drills with slower devices: ranks sleep for the rest
    of it."""
