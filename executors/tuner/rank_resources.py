"""Objects of a rank that all its tasks use."""

from dataclasses import dataclass

import torch

from executors.tuner.checkpoints import TuningCheckpoints
from executors.tuner.keeper import Keeper
from executors.tuner.part_queue import PartQueue
from executors.tuner.settings import TunerSettings


@dataclass
class RankResources:
    """Objects of a rank that all its tasks use.

    Attributes:
        stepped_s: end of the last step of any task, on the monotonic clock; None before the first.
    """

    cell: str
    node: str
    device: torch.device
    settings: TunerSettings
    checkpoints: TuningCheckpoints
    keeper: Keeper
    inbox: PartQueue
    stepped_s: float | None = None
