"""One worker of fine-tuning tasks in this process, halted after an exact number of steps."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from executors.gang.folder import JobFolder
from executors.gang.messages import Membership
from executors.lora.dataset import DatasetRoot
from executors.lora.resident import new_state
from executors.lora.shared_base import SharedBase
from executors.tuner.checkpoints import TuningCheckpoints, lora_task
from executors.tuner.data import Loader, Loaders, SharedTokenizer
from executors.tuner.files import JobFiles
from executors.tuner.keeper import Keeper
from executors.tuner.messages import MESSAGES, ProfilePart, TaskPart, TaskReport
from executors.tuner.opening import BackgroundOpening
from executors.tuner.profiling import Profile, profile
from executors.tuner.rank import TaskOpener
from executors.tuner.rank_resources import PartQueue, RankResources
from executors.tuner.runner import _REPORTS
from executors.tuner.settings import TunerSettings
from executors.tuner.task_run import TaskRun
from executors.tuner.training import Trainer, new_adapter
from schemas.fleet import RunReport
from schemas.merging.commands import ProfileOrdered, TaskAssigned
from schemas.merging.workload import TuningWorkload
from tests.support.nodes import CELL


class _PartQueue(PartQueue):
    """Ends a task after so many steps: it is asked once before the first and at each of them."""

    def __init__(self, connection, steps: int | None) -> None:
        super().__init__(connection, lambda part: None)
        self._left = None if steps is None else steps

    def is_halted(self, part: int) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        return self._left < 0


@dataclass
class LoneWorker:
    """Runs tasks one after another, with what lies on its disk."""

    base: SharedBase
    root: Path
    settings: TunerSettings

    def __post_init__(self) -> None:
        self.files = JobFiles(self.root / "state", CELL)
        self.checkpoints = TuningCheckpoints(self.files, self.base, CELL, self.root / "output")
        self.loaders = Loaders(
            DatasetRoot(self.settings.dataset_root),
            SharedTokenizer(self.base.tokenizer),
            self.settings,
            form=self.base.objective.records,
        )
        self.keeper = Keeper()
        self._parts = 0
        self._ends: list[Connection] = []
        """Kept: a rank ends its process when its node does not receive its messages."""

    def run(self, command: TaskAssigned, steps: int | None = None, settle: bool = True) -> list[RunReport]:
        """Run a task to its end, or for so many steps, and return what it has reported.

        Args:
            settle: whether to wait for what is written; if not, the next task begins at the same time.
        """
        ours, theirs = Pipe()
        self._ends.append(ours)
        self._parts += 1
        inbox = _PartQueue(theirs, steps)
        around = self.around(inbox)
        part = TaskPart(
            part=self._parts, command=command, membership=Membership(generation=1, rank=0, world=1)
        )
        opener = TaskOpener(self.base, self.loaders, around)
        opening = BackgroundOpening(lambda: opener.for_task(part), lambda: False)
        folder = JobFolder(self.files.meeting_place(command.task_id))
        TaskRun(part, around, opening, folder).run()
        if not settle:
            return []
        self.keeper.settle()
        words = []
        while ours.poll():
            words.append(MESSAGES.validate_json(ours.recv_bytes()))
        return [word.parsed(_REPORTS) for word in words if isinstance(word, TaskReport)]

    def around(self, inbox: PartQueue) -> RankResources:
        """Return the resources of its tasks."""
        device = torch.device("cpu")
        return RankResources(CELL, "n1", device, self.settings, self.checkpoints, self.keeper, inbox)

    def profiled(self, command: ProfileOrdered, is_halted: bool) -> Profile | None:
        """Make a profile run."""
        part = ProfilePart(part=1, command=command, membership=Membership(generation=1, rank=0, world=1))
        ours, theirs = Pipe()
        self._ends.append(ours)
        rank = TaskOpener(
            self.base, self.loaders, self.around(PartQueue(theirs, lambda _: None))
        ).for_profile(part)
        deadline_s = time.monotonic() + command.limit_s
        device = torch.device("cpu")
        return profile(command, rank, self.base, self.settings, device, deadline_s, True, lambda: is_halted)


def open_trainer(base: SharedBase, workload: TuningWorkload, loader: Loader, device: torch.device) -> Trainer:
    """A new adapter of a job, ready to train; its micro-batch is the whole batch."""
    hyperparameters = workload.hyperparameters
    own = base.frozen(hyperparameters.frozen_layers)
    task = lora_task("trained", workload)
    layout = own.layout(task)
    adapter = new_adapter(task, layout, new_state(task, layout, loader.digest), device)
    checkpoints = hyperparameters.gradient_checkpointing
    return Trainer(own, adapter, device, hyperparameters.batch_size, checkpoints_activations=checkpoints)


def reports_of(reports: Sequence[RunReport], kind: type[RunReport], job_id: str | None = None) -> list:
    """Return the reports of one kind, of a job if named."""
    return [each for each in reports if isinstance(each, kind) and job_id in (None, each.job_id)]
