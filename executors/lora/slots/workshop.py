"""Resources with which a node trains LoRA tasks, slot after slot."""

from dataclasses import dataclass

from executors.lora.engine import FusedEngine
from executors.lora.slots.checkpoints import AdapterOutput, RunCheckpoints
from executors.lora.slots.settings import LoraSettings
from executors.node.room import DiskSpace
from executors.node.runner import Clock


@dataclass(frozen=True)
class Workshop:
    """Engine, stores and settings, which all slots of a node share."""

    cell: str
    base_model: str
    engine: FusedEngine
    checkpoints: RunCheckpoints
    adapters: AdapterOutput
    settings: LoraSettings
    room: DiskSpace
    clock: Clock
