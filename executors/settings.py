"""The settings that runners share: environment variables `MILLRACE_*`, besides those of their node."""

import socket
from pathlib import Path
from typing import Annotated

import psutil
from platformdirs import user_data_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from executors.devices import Device
from executors.node.runner import UnfitError
from schemas.kafka_connection import ENVIRONMENT_PREFIX
from schemas.service_base import SHORTEST_S, Host


class RunnerSettings(BaseSettings):
    """Settings of every runner. Units are in the names."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    dataset_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "datasets")
    """Folder of the jobs' datasets. Must exist, with the same content on every node."""
    device: Device = "cpu"
    """Device of torch. With `cuda`, each rank of a gang has a device, and a single process the first."""
    threads: Annotated[int, Field(ge=1, le=1_024)] = 1
    """CPU threads of torch in each process."""
    checkpoint_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 60.0
    """Time after which a job is checkpointed, between two steps (s)."""
    checkpoint_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """Longest wait of a starting job for the checkpoint that was last reported to the cell (s). In a slot, it
    is a quarter of the slot at most."""

    def check(self) -> None:
        """Check that this machine has what the settings name.

        Raises:
            UnfitError: a folder is missing, or the worker host is another machine.
        """
        _check_folder("dataset root", self.dataset_root)


class BaseModelSettings(RunnerSettings):
    """Settings of runners whose jobs share a base model."""

    base_model_dir: Path | None = None
    """The Hugging Face directory of the base model. Default: a small Llama, which is made on the first
    start."""
    base_model_address: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Name by which users load the base model, such as that on the Hugging Face hub: published adapters state
    it. Default: `MILLRACE_BASE_MODEL`."""

    def check(self) -> None:
        super().check()
        model = self.base_model_dir
        if model is not None and not (model / "config.json").is_file():
            raise UnfitError(f"base_model_dir {model}: no Hugging Face model directory")


class ThrottledSettings(RunnerSettings):
    """Settings of runners whose training can be slowed down."""

    least_sequence_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Shortest time of a sequence in training (s), for drills with slower devices: a process sleeps for the
    rest of it, see `executors/throttle.py`."""


class GangSettings(RunnerSettings):
    """Settings of every runner of gangs. Units are in the names."""

    gpus: Annotated[int, Field(ge=1, le=1_024)] | None = None
    """Ranks that the node has room for, each with one GPU. Default: all CUDA devices, or on a CPU all
    cores."""
    rank_host: Host = "127.0.0.1"
    """Address at which ranks of other nodes reach those of this one; the default serves nodes of one machine
    only."""

    join_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 300.0
    """Longest wait of a rank for the others of its generation to load the model and to join."""
    peer_timeout_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 600.0
    """Longest wait of a rank for another in a step."""
    stop_grace_s: Annotated[float, Field(ge=SHORTEST_S, le=3_600)] = 20.0
    """Longest time that ranks take to end when the node stops."""

    def check(self) -> None:
        super().check()
        try:
            interface_of(self.rank_host)
        except OSError as error:
            raise UnfitError(str(error)) from error


class JobSettings(GangSettings):
    """Settings of runners whose ranks are started for one job, and load its model."""

    model_root: Path = Field(default_factory=lambda: user_data_path("millrace") / "models")
    """Folder of the Hugging Face directories of jobs' models. Must exist, with the same content on every
    node."""

    progress_s: Annotated[float, Field(ge=0, le=3_600)] = 5.0
    """Interval of reports of progress (s), 0 for each step; each checkpoint is reported, too."""
    release_grace_s: Annotated[float, Field(ge=SHORTEST_S, le=3_600)] = 60.0
    """Longest time that ranks take to end if the command sets none."""

    def check(self) -> None:
        super().check()
        _check_folder("model root", self.model_root)


def _check_folder(name: str, folder: Path) -> None:
    if not folder.is_dir():
        raise UnfitError(f"{name} {folder} is not a folder")


def interface_of(host: str) -> str:
    """Return the network interface of this machine that has the address of `host`.

    Raises:
        OSError: no such host exists, or it is another machine.
    """
    address = socket.gethostbyname(host)
    for interface, addresses in sorted(psutil.net_if_addrs().items()):
        if any(address == entry.address for entry in addresses):
            return interface
    raise OSError(f"worker host {host}: no network interface here has the address {address}")
