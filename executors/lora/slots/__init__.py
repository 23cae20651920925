"""The runner `lora`: trains slots with the multi-LoRA engine, which is loaded only on demand."""

from executors.lora.slots.settings import LoraSettings
from executors.node.runner import Runner, RunnerContext
from schemas.commands import Command
from schemas.errors import require_extra
from schemas.lora_commands import RunCancelled, SlotAssigned


class LoraSlots:
    """See `RunnerKind`."""

    commands: tuple[type[Command], ...] = (SlotAssigned, RunCancelled)

    def __init__(self) -> None:
        """Check the folders of the data and the base model.

        Raises:
            MissingExtraError: torch or another library is not installed.
            UnfitError: a folder is missing.
            ValidationError: a setting is invalid.
        """
        require_extra("executors")
        self._settings = LoraSettings()
        self._settings.check()

    def load(self, context: RunnerContext) -> Runner:
        """Load torch and the base model: seconds to minutes.

        Raises:
            BaseModelError: the directory has no base model that the engine can use.
            OSError: a folder cannot be read.
            RuntimeError: torch has no such device, or the model does not fit on it.
        """
        from executors.lora.slots.runner import LoraRunner, load_workshop

        return LoraRunner(load_workshop(context, self._settings), context.report)
