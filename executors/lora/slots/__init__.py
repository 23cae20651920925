"""The runner `lora`: trains slots with the multi-LoRA engine, which is loaded only when it is needed."""

from executors.node.runner import Runner, RunnerContext, UnfitError
from executors.node.settings import ExecutorSettings
from schemas.commands import Command, RunCancelled, SlotAssigned


class LoraSlots:
    """See `RunnerKind`."""

    commands: tuple[type[Command], ...] = (SlotAssigned, RunCancelled)

    def __init__(self, settings: ExecutorSettings) -> None:
        """Look for the data and the base model.

        Raises:
            UnfitError: a folder is missing.
        """
        if not settings.dataset_root.is_dir():
            raise UnfitError(f"dataset root {settings.dataset_root} is no folder")
        model = settings.base_model_dir
        if model is not None and not (model / "config.json").is_file():
            raise UnfitError(f"{model}: no Hugging Face model directory")

    def load(self, context: RunnerContext) -> Runner:
        """Load torch and the base model: seconds to minutes.

        Raises:
            BaseModelError: the directory holds no base model that the engine can use.
            OSError: a folder cannot be read.
            RuntimeError: torch has no such device, or the model does not fit on it.
        """
        from executors.lora.slots.runner import LoraRunner, load_workshop

        return LoraRunner(load_workshop(context), context.report)
