"""A rank of the tuner: one GPU, the base model, and one part of a task after another.

Its loop differs from that of `executors.gang.rank`, where a rank has one job and ends with it: here the next
part is sent while the present one runs. Between two tasks, only adapter, optimizer and data change (runtime
reuse, Ymir, section 6). The next task is opened while the present task trains, and the results of a task are
written while the next task trains.
"""

from dataclasses import replace
from multiprocessing.connection import Connection
from typing import cast

import torch
from transformers.utils.logging import disable_progress_bar

from executors.devices import use_device
from executors.gang.folder import JobFolder
from executors.gang.messages import Membership
from executors.gang.network import use_interface
from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import keep_freed_memory
from executors.lora.faults import described
from executors.lora.shared_base import SharedBase
from executors.tuner.checkpoints import TuningCheckpoints
from executors.tuner.data import Loaders, SharedTokenizer
from executors.tuner.files import JobFiles
from executors.tuner.indexing import IndexFiles, index_folder
from executors.tuner.keeper import Keeper
from executors.tuner.messages import ProfilePart, RankEnvironment, Ready, TaskPart, Unfit
from executors.tuner.opening import BackgroundOpening, OpenTask, open_job, open_task
from executors.tuner.pipeline.stages import Stages
from executors.tuner.pipeline.succession import FindSuccessor
from executors.tuner.profiling import ProfileRun
from executors.tuner.rank_resources import PartQueue, RankResources
from executors.tuner.replicas import Replicas
from executors.tuner.task_rank import TaskRank
from executors.tuner.task_run import TaskRun
from schemas.merging.commands import TransferMode
from schemas.merging.workload import MAX_ITERATIONS


class TaskOpener:
    """Base model and data of a rank, for all of its tasks."""

    def __init__(self, base: SharedBase, loaders: Loaders, surroundings: RankResources) -> None:
        self._base = base
        self._loaders = loaders
        self._around = surroundings

    def for_task(self, part: TaskPart, find_successor: FindSuccessor[Stages] = lambda: None) -> TaskRank:
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
        return self._rank(command.mode, opened, membership, len(command.members), find_successor)

    def for_profile(self, part: ProfilePart) -> TaskRank:
        """Open a job for its profile run.

        Raises:
            FieldError: the job does not fit the base model, or its data is unfit.
        """
        order = part.command.order
        job = open_job(order, self._base, self._loaders)
        # A profile run may take more steps than the job.
        total = MAX_ITERATIONS * job.batch_size
        job = replace(job, task=job.task.model_copy(update={"total_samples": total}))
        return self._rank("normal", OpenTask([job], None), part.membership, 1, lambda: None)

    def _rank(
        self,
        mode: TransferMode,
        opened: OpenTask,
        membership: Membership,
        nodes: int,
        find_successor: FindSuccessor[Stages],
    ) -> TaskRank:
        settings, device = self._around.settings, self._around.device
        if opened.jobs[0].order.workload.pipeline:
            return Stages(opened, self._base, membership, nodes, settings, device, find_successor)
        return Replicas(mode, opened, membership, nodes, settings, device)


def run_rank(environment_json: str, connection: "Connection[bytes, bytes]") -> None:
    environment = RankEnvironment.model_validate_json(environment_json)
    try:
        base = _load(environment)
    except Exception as error:
        connection.send_bytes(Unfit(error=described(error)).model_dump_json().encode())
        return
    TunerRank(environment, base, connection).serve()


def _load(environment: RankEnvironment) -> SharedBase:
    settings = environment.tuner_settings()
    device = use_device(settings.device, environment.gpu)
    disable_progress_bar()
    keep_freed_memory()
    torch.set_num_threads(settings.threads)
    use_interface(settings.rank_host)
    address = settings.base_model_address or environment.base_model
    return load_base(settings.base_model_dir, device, address)


class TunerRank:
    """Runs one part after another."""

    def __init__(
        self, environment: RankEnvironment, base: SharedBase, connection: "Connection[bytes, bytes]"
    ) -> None:
        self._environment = environment
        self._base = base
        self._settings = environment.tuner_settings()
        self._files = JobFiles(environment.state_root, environment.cell)
        loaders = Loaders(
            DatasetRoot(self._settings.dataset_root),
            SharedTokenizer(base.tokenizer),
            self._settings,
            find_index=IndexFiles(index_folder(environment)).find,
            form=base.objective.records,
        )
        self._openings: dict[int, tuple[TaskPart, BackgroundOpening[TaskRank]]] = {}
        self._inbox = PartQueue(connection, self._open)
        self._surroundings = RankResources(
            cell=environment.cell,
            node=environment.node,
            device=base.model.device,
            settings=self._settings,
            checkpoints=TuningCheckpoints(self._files, base, environment.cell, environment.output_root),
            keeper=Keeper(),
            inbox=self._inbox,
        )
        self._opener = TaskOpener(base, loaders, self._surroundings)

    def serve(self) -> None:
        """Run parts until the node is gone."""
        self._inbox.send(Ready())
        self._inbox.listen()
        while True:
            part = self._inbox.next_part()
            if isinstance(part, TaskPart):
                self._run_task(part)
            else:
                self._run_profile(part)

    def _open(self, part: TaskPart) -> None:
        self._openings[part.part] = (
            part,
            BackgroundOpening(
                lambda: self._opener.for_task(part, lambda: self._successor(part)),
                lambda: self._inbox.is_halted(part.part),
            ),
        )

    def _successor(self, part: TaskPart) -> BackgroundOpening[Stages] | None:
        """Return the opening of the task that is to take over this one's connected ranks."""
        for following, opening in list(self._openings.values()):
            if following.follows == part.part:
                return cast(BackgroundOpening[Stages], opening)
        return None

    def _run_task(self, part: TaskPart) -> None:
        folder = JobFolder(self._files.meeting_place(part.meeting))
        _, opening = self._openings.pop(part.part)
        TaskRun(part, self._surroundings, opening, folder).run()

    def _run_profile(self, part: ProfilePart) -> None:
        folder = JobFolder(self._files.meeting_place(part.meeting))
        ProfileRun(part, self._surroundings, self._base, lambda: self._opener.for_profile(part), folder).run()
