"""What a rank gives each of its tasks."""

from dataclasses import dataclass

import torch

from executors.tuner.checkpoints import TuningCheckpoints
from executors.tuner.keeper import Keeper
from executors.tuner.part_queue import PartQueue
from executors.tuner.settings import TunerSettings


@dataclass
class Surroundings:
    """What a rank gives each of its tasks.

    Attributes:
        stepped_s: when the last step of any of them ended, by the monotonic clock; None before the first.
    """

    cell: str
    node: str
    device: torch.device
    settings: TunerSettings
    checkpoints: TuningCheckpoints
    keeper: Keeper
    inbox: PartQueue
    stepped_s: float | None = None
