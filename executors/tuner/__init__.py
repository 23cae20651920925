"""The runner `tuner`: fine-tuning tasks of one base model, which stays loaded from one task to the next.

A task is a gang: its ranks over nodes, in one generation. Ranks meet, connect and fail as those of every gang
(`executors.gang`). But a rank here is not started for a job: it has one GPU and the base model, and outlives
its tasks. A task has up to two jobs, each with a run of its own, may take connected ranks over from the task
before, and survives the loss of a rank. So the loop of its parts, and their reports, are apart: see
`executors.tuner.rank`.

The node's own process imports no torch: a fork server does, and the ranks are forked from it.
"""

from executors.gang.runner import GangRunnerKind
from executors.node.runner import UnfitError
from executors.tuner.settings import TunerSettings
from schemas.merging.commands import LoaderPrewarmed, ProfileOrdered, TaskAssigned, TaskReleased


class FineTuning(GangRunnerKind):
    """See `GangRunnerKind`. Loading waits until each rank has the base model: seconds to minutes."""

    commands = (ProfileOrdered, TaskAssigned, TaskReleased, LoaderPrewarmed)
    SETTINGS = TunerSettings
    FOLDERS = ("dataset_root",)
    RUNNER = "executors.tuner.runner:TunerRunner.started"
    MODULES = ("executors.tuner.rank",)

    def __init__(self) -> None:
        """See `GangRunnerKind`.

        Raises:
            UnfitError: likewise, or there is no base model.
        """
        super().__init__()
        assert isinstance(self._settings, TunerSettings), "SETTINGS is its type"
        model = self._settings.base_model_dir
        if model is not None and not (model / "config.json").is_file():
            raise UnfitError(f"base_model_dir {model}: no Hugging Face model directory")
