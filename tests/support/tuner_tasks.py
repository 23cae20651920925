"""One worker of fine-tuning tasks in this process, halted after an exact number of steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

import torch

from executors.lora.base_model import SharedBase
from executors.lora.dataset import DatasetRoot
from executors.tuner.checkpoints import JobCheckpoints
from executors.tuner.data import PreparedLoaders, SharedTokenizer
from executors.tuner.files import JobFiles
from executors.tuner.inbox import Inbox
from executors.tuner.keeper import Keeper
from executors.tuner.messages import WORDS, TaskPart, Told, Verdict
from executors.tuner.opening import open_task
from executors.tuner.runner import _REPORTS
from executors.tuner.settings import TunerSettings
from executors.tuner.surroundings import Surroundings
from executors.tuner.task import TaskRun
from executors.workers.folder import JobFolder
from executors.workers.membership import Membership
from schemas.fleet import RunReport
from schemas.merging.commands import TaskAssigned
from tests.support.tuner_nodes import CELL


class _Inbox(Inbox):
    """Ends a task after so many steps: it is asked once before the first and at each of them."""

    def __init__(self, connection, steps: int | None, verdict: Verdict) -> None:
        super().__init__(connection, lambda part: None)
        self._left = None if steps is None else steps
        self._last = verdict

    def verdict(self, part: int) -> Verdict | None:
        if self._left is None:
            return None
        self._left -= 1
        return self._last if self._left < 0 else None


@dataclass
class LoneWorker:
    """Runs tasks one after another, with what lies on its disk."""

    base: SharedBase
    root: Path
    settings: TunerSettings

    def __post_init__(self) -> None:
        self.files = JobFiles(self.root / "state", CELL)
        self.checkpoints = JobCheckpoints(self.files, self.base, CELL, self.root / "output")
        self.loaders = PreparedLoaders(
            DatasetRoot(self.settings.dataset_root), SharedTokenizer(self.base.tokenizer), self.settings
        )
        self.keeper = Keeper()
        self._parts = 0

    def run(
        self, command: TaskAssigned, steps: int | None = None, verdict: Verdict = "keep", settle: bool = True
    ) -> list[RunReport]:
        """Run a task to its end, or for so many steps, and return what it has reported.

        Args:
            settle: whether to wait for what is written; if not, the next task begins beside it.
        """
        ours, theirs = Pipe()
        self._parts += 1
        inbox = _Inbox(theirs, steps, verdict)
        surroundings = Surroundings(
            CELL, "n1", torch.device("cpu"), self.settings, self.checkpoints, self.keeper, inbox
        )
        part = TaskPart(
            part=self._parts, command=command, membership=Membership(generation=1, rank=0, world=1)
        )

        def opened():
            return open_task(
                command, True, self.checkpoints, self.loaders, self.settings, torch.device("cpu")
            )

        folder = JobFolder(self.files.meeting_place(command.task_id))
        TaskRun(part, surroundings, opened, folder).run()
        if not settle:
            return []
        self.keeper.settle()
        words = []
        while ours.poll():
            words.append(WORDS.validate_json(ours.recv_bytes()))
        return [
            _REPORTS[word.type].model_validate(word.data, strict=False)
            for word in words
            if isinstance(word, Told)
        ]


def reports_of(reports: Sequence[RunReport], kind: type[RunReport], job_id: str | None = None) -> list:
    """Those of one kind, of a job if named."""
    return [each for each in reports if isinstance(each, kind) and job_id in (None, each.job_id)]
