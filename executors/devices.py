"""The device of torch, as a setting of a runner; also for processes without torch."""

import os
from typing import Annotated

from pydantic import Field

Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")]
"""`cpu`; `cuda`, all CUDA devices that the process sees; or `cuda:N`, device N alone."""


def gpus_of(device: str, gpus: int | None, cuda_devices: int) -> int:
    """Return the number of GPUs that a node has for its processes: as set, or one per CUDA device, or per CPU
    core.

    Args:
        gpus: number that is set, if any.
        cuda_devices: number of CUDA devices that the process sees.

    Raises:
        ValueError: there are fewer CUDA devices than the settings require.
    """
    if device == "cpu":
        return gpus or os.cpu_count() or 1
    single = _index(device)
    if single is not None and (gpus or 1) > 1:
        raise ValueError(f"{device} is one CUDA device, and {gpus} are requested: set the device to cuda")
    if single is not None and single >= cuda_devices:
        raise ValueError(f"there is no {device}: the machine has {cuda_devices} CUDA devices")
    if single is None and cuda_devices < (gpus or 1):
        raise ValueError(f"{gpus or 1} CUDA devices are requested, the machine has {cuda_devices}")
    return 1 if single is not None else gpus or cuda_devices


def use_device(device: str, gpu: int) -> str:
    """Let this process see one CUDA device only, and return torch's name of the device to compute on.

    Must be called before the process uses CUDA.

    Args:
        gpu: number of this process's GPU on the node; see `gpus_of`.
    """
    if device == "cpu":
        return device
    single = _index(device)
    number = gpu if single is None else single
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = str(number) if visible is None else visible.split(",")[number]
    return "cuda"


def _index(device: str) -> int | None:
    _, _, number = device.partition(":")
    return int(number) if number else None
