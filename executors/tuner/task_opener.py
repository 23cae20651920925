"""Opening of tasks and profile runs, for ranks that share the work as the job requests."""

from dataclasses import replace

from executors.gang.membership import Membership
from executors.lora.base_model import SharedBase
from executors.tuner.data import PreparedLoaders
from executors.tuner.messages import ProfilePart, TaskPart
from executors.tuner.opening import OpenTask, open_job, open_task
from executors.tuner.pipeline.stages import Stages
from executors.tuner.pipeline.succession import FindSuccessor
from executors.tuner.rank_resources import RankResources
from executors.tuner.replicas import Replicas
from executors.tuner.team import Team
from schemas.merging.commands import TransferMode
from schemas.merging.workload import MAX_ITERATIONS


class TaskOpener:
    """Base model and data of a rank, for all of its tasks."""

    def __init__(self, base: SharedBase, loaders: PreparedLoaders, surroundings: RankResources) -> None:
        self._base = base
        self._loaders = loaders
        self._around = surroundings

    def for_task(self, part: TaskPart, find_successor: FindSuccessor[Stages] = lambda: None) -> Team:
        """Open a task.

        Args:
            find_successor: see `Stages`.

        Raises:
            JobError: a job cannot be trained.
            UnfitMergeError: the jobs cannot be merged.
            StaleWriterError: a later generation runs the jobs.
        """
        command, membership = part.command, part.membership
        opened = open_task(
            command,
            membership.rank == 0,
            self._base,
            self._around.checkpoints,
            self._loaders,
            self._around.settings,
        )
        return self._team(command.mode, opened, membership, len(command.members), find_successor)

    def for_profile(self, part: ProfilePart) -> Team:
        """Open a job for its profile run.

        Raises:
            FieldError: the job does not fit the base model, or its data is unfit.
        """
        order = part.command.order
        job = open_job(order, self._base, self._loaders)
        # A profile run may take more steps than the job.
        total = MAX_ITERATIONS * job.batch_size
        job = replace(job, task=job.task.model_copy(update={"total_samples": total}))
        return self._team("normal", OpenTask([job], None), part.membership, 1, lambda: None)

    def _team(
        self,
        mode: TransferMode,
        opened: OpenTask,
        membership: Membership,
        nodes: int,
        find_successor: FindSuccessor[Stages],
    ) -> Team:
        settings, device = self._around.settings, self._around.device
        if opened.jobs[0].order.workload.pipeline:
            return Stages(opened, self._base, membership, nodes, settings, device, find_successor)
        return Replicas(mode, opened, membership, nodes, settings, device)
