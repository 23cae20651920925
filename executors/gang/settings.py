"""The settings that runners of gangs share: environment variables `MILLRACE_*`."""

from pathlib import Path
from typing import Annotated

from platformdirs import user_data_path
from pydantic import Field

from executors.settings import RunnerSettings
from schemas.services import SHORTEST_S, Host


class GangSettings(RunnerSettings):
    """Settings of every runner of gangs. Units are in the names."""

    gpus: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """Ranks that the node has room for, each with one GPU. Default: all CUDA devices, or on a CPU all
    cores."""
    worker_host: Host = "127.0.0.1"
    """Address at which ranks of other nodes reach those of this one; the default serves nodes of one machine
    only."""

    join_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 300.0
    """Longest wait of a rank for the others of its generation to load the model and to join."""
    peer_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 600.0
    """Longest wait of a rank for another in a step."""
    stop_grace_s: Annotated[float, Field(ge=SHORTEST_S, le=3_600)] = 20.0
    """Longest time that ranks take to end when the node stops."""


class JobSettings(GangSettings):
    """Settings of runners whose ranks are started for one job, and load its model."""

    model_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "models")
    """Folder of the Hugging Face directories of jobs' models. Must exist, with the same content on every
    node."""

    progress_s: Annotated[float, Field(ge=0, le=3_600)] = 5.0
    """Interval of reports of progress (s), 0 for each step; each checkpoint is reported, too."""
    release_grace_s: Annotated[float, Field(ge=SHORTEST_S, le=3_600)] = 60.0
    """Longest time that ranks take to end if the command sets none."""
