"""The settings of the runner `elastic`: environment variables `MILLRACE_*`, beside those of its node."""

from typing import Annotated

from pydantic import Field

from executors.gang.settings import JobSettings
from schemas.services import SHORTEST_S


class ElasticSettings(JobSettings):
    """How the runner trains."""

    peer_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 600.0
    """How long a worker waits for another's part of a step, or for the leader's checkpoint."""
