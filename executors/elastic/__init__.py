"""The runner `elastic`: data-parallel training on workers that join and leave while it goes on.

Each worker process is a rank of torch.distributed. The node's own process imports no torch: a fork server
does, and the worker processes are forked from it.
"""

from executors.elastic.settings import ElasticSettings
from executors.gang.network import check_place
from executors.node.runner import Runner, RunnerContext
from schemas.commands import Command
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.extras import require_extra


class ElasticTraining:
    """See `RunnerKind`."""

    commands: tuple[type[Command], ...] = (WorkersAssigned, WorkersReleased)

    def __init__(self) -> None:
        """Look for the data and the models.

        Raises:
            MissingExtraError: torch or another library is not installed.
            UnfitError: a folder is missing, or the worker host is another machine.
            ValidationError: a setting is none.
        """
        require_extra("executors")
        self._settings = ElasticSettings()
        settings = self._settings
        check_place(settings.worker_host, dataset_root=settings.dataset_root, model_root=settings.model_root)

    def load(self, context: RunnerContext) -> Runner:
        """Start the fork server, which imports torch and transformers: some ten seconds.

        Raises:
            ValueError: the machine has fewer CUDA devices than are set.
        """
        from executors.devices import gpus_of
        from executors.elastic.processes import warm_up
        from executors.elastic.runner import ElasticRunner

        return ElasticRunner(
            context, self._settings, gpus_of(self._settings.device, self._settings.gpus, warm_up())
        )
