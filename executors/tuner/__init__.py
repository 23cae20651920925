"""The runner `tuner`: fine-tuning tasks of one base model, which stays loaded from one task to the next.

Each worker process has one GPU and the base model. The node's own process imports no torch: a fork server
does, and the worker processes are forked from it.
"""

from executors.gang.network import check_place
from executors.node.runner import Runner, RunnerContext, UnfitError
from executors.tuner.settings import TunerSettings
from schemas.commands import Command
from schemas.extras import require_extra
from schemas.merging.commands import LoaderPrewarmed, ProfileOrdered, TaskAssigned, TaskReleased


class FineTuning:
    """See `RunnerKind`."""

    commands: tuple[type[Command], ...] = (ProfileOrdered, TaskAssigned, TaskReleased, LoaderPrewarmed)

    def __init__(self) -> None:
        """Look for the data and the base model.

        Raises:
            MissingExtraError: torch or another library is not installed.
            UnfitError: a folder is missing, or the worker host is another machine.
            ValidationError: a setting is none.
        """
        require_extra("executors")
        self._settings = TunerSettings()
        check_place(self._settings.worker_host, dataset_root=self._settings.dataset_root)
        model = self._settings.base_model_dir
        if model is not None and not (model / "config.json").is_file():
            raise UnfitError(f"base_model_dir {model}: no Hugging Face model directory")

    def load(self, context: RunnerContext) -> Runner:
        """Start the worker processes, and wait until each has the base model: seconds to minutes.

        Raises:
            UnfitError: the directory holds no base model that the engine can use.
            ValueError: the machine has fewer CUDA devices than are set.
        """
        from executors.devices import gpus_of
        from executors.tuner.processes import warm_up
        from executors.tuner.runner import TunerRunner

        gpus = gpus_of(self._settings.device, self._settings.gpus, warm_up())
        return TunerRunner.started(context, self._settings, gpus)
