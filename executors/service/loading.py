"""What a node works with, made from its settings."""

import torch
from transformers.utils.logging import disable_progress_bar

from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.host_memory import keep_freed_memory
from executors.service.adapters import AdapterOutput
from executors.service.checkpoints import RunCheckpoints
from executors.service.clock import Clock
from executors.service.room import Room
from executors.service.settings import ExecutorSettings
from executors.service.slot_runner import Cadence, Workshop


def load_workshop(settings: ExecutorSettings, room: Room, clock: Clock) -> Workshop:
    """Load the base model and put an engine on it.

    Raises:
        BaseModelError: the directory holds no base model that the engine can use.
        OSError: a folder cannot be read.
        RuntimeError: torch has no such device, or the model does not fit on it.
    """
    keep_freed_memory()
    # The log is for lines.
    disable_progress_bar()
    torch.set_num_threads(settings.threads)
    base = load_base(settings.base_model_dir, settings.device)
    return Workshop(
        cell=settings.cell,
        base_model=settings.base_model,
        engine=FusedEngine(base, DatasetRoot(settings.dataset_root), settings.device),
        checkpoints=RunCheckpoints(
            settings.state_root / settings.cell / "checkpoints", base, settings.parked_runs
        ),
        adapters=AdapterOutput(settings.output_root, settings.cell, base),
        cadence=Cadence(
            checkpoint_steps=settings.checkpoint_steps,
            checkpoint_s=settings.checkpoint_s,
            checkpoint_wait_s=settings.checkpoint_wait_s,
            progress_s=settings.progress_s,
        ),
        room=room,
        clock=clock,
    )
