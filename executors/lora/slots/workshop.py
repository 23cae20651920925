"""Resources with which a node trains LoRA tasks, slot after slot."""

from dataclasses import dataclass

from executors.lora.engine import FusedEngine
from executors.lora.slots.adapters import AdapterOutput
from executors.lora.slots.checkpoints import RunCheckpoints
from executors.node.room import DiskSpace
from executors.node.runner import Clock


@dataclass(frozen=True)
class Cadence:
    """Intervals of the periodic work in a slot."""

    checkpoint_steps: int
    checkpoint_s: float
    checkpoint_wait_s: float
    progress_s: float


@dataclass(frozen=True)
class Workshop:
    """Engine, stores and settings, which all slots of a node share."""

    cell: str
    base_model: str
    engine: FusedEngine
    checkpoints: RunCheckpoints
    adapters: AdapterOutput
    cadence: Cadence
    room: DiskSpace
    clock: Clock
