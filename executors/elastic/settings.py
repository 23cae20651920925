"""The settings of the runner `elastic`: environment variables `MILLRACE_*`, beside those of its node."""

from typing import Annotated

from pydantic import Field

from executors.workers.settings import JobSettings


class ElasticSettings(JobSettings):
    """How the runner trains."""

    peer_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long a worker waits for another's part of a step, or for the leader's checkpoint."""
