"""Mixture-of-experts models with adaptive gating (thesis, chapter 5), and the runner `moe`, by which they are
trained and served over ranks (chapter 4).

Each rank is a process of torch.distributed. The node's own process imports no torch: a fork server does, and
the ranks are forked from it.
"""

from executors.gang.network import check_place
from executors.moe.settings import MoeSettings
from executors.node.runner import Runner, RunnerContext
from schemas.commands import Command
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased
from schemas.extras import require_extra


class ExpertRanks:
    """See `RunnerKind`."""

    commands: tuple[type[Command], ...] = (RanksAssigned, ExpertsPlaced, RanksReleased)

    def __init__(self) -> None:
        """Look for the data and the models.

        Raises:
            MissingExtraError: torch or another library is not installed.
            UnfitError: a folder is missing, or the worker host is another machine.
            ValidationError: a setting is none.
        """
        require_extra("executors")
        self._settings = MoeSettings()
        settings = self._settings
        check_place(settings.worker_host, dataset_root=settings.dataset_root, model_root=settings.model_root)

    def load(self, context: RunnerContext) -> Runner:
        """Start the fork server, which imports torch and transformers: some ten seconds.

        Raises:
            ValueError: the machine has fewer CUDA devices than are set.
        """
        from executors.devices import gpus_of
        from executors.moe.ranks.kinds import warm_up
        from executors.moe.runner import MoeRunner

        return MoeRunner(
            context, self._settings, gpus_of(self._settings.device, self._settings.gpus, warm_up())
        )
