"""States of jobs between their runs, and records of finished jobs: the base of all checkpoints."""

import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from executors.node.checkpoints import FINAL, Checkpoint, CheckpointStore
from schemas.base import Record

FINISHED_JOB = "finished.json"

_POLL_S = 0.1


class FinishedRecord(Record):
    """Record of a job whose result is published: enough to report it again.

    Another job may have the same id after a restart of its cell from nothing.
    """

    @property
    @abstractmethod
    def identity(self) -> tuple[object, str]:
        """The job's work, and the path of its result relative to the output root, which names the user."""


A = TypeVar("A", bound=Record)
F = TypeVar("F", bound=FinishedRecord)


class JobStates(Generic[A, F]):
    """States and records of jobs on the shared store, by generations.

    The store refuses a writer that a later generation has replaced, writes atomically, verifies digests, and
    keeps the last states (`CheckpointStore`). A runner defines the content.
    """

    ABOUT_FILE: ClassVar[str]
    """File of a state's `ABOUT`, besides the tensors."""
    ABOUT: type[A]
    FINISHED: type[F]

    def __init__(self, root: Path) -> None:
        """Keep the states of each job below a folder."""
        self.store = CheckpointStore(root)

    def newest(self, job_id: str, oldest: int = 0) -> Checkpoint | None:
        """Return the newest valid state, or the record of a finished job; None if a generation before
        `oldest` wrote it."""
        newest = self.store.newest(job_id)
        return None if newest is None or newest.token < oldest else newest

    def await_newest(self, job_id: str, samples: int, wait_s: float, oldest: int = 0) -> Checkpoint | None:
        """Return the newest state as `newest` does. If the cell has a report of one, wait for it: its writer
        may still run.

        Args:
            samples: samples of the reported state; 0 without a report.
            wait_s: longest wait, after which the newest state is returned.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            newest = self.newest(job_id, oldest)
            samples_done = 0 if newest is None else newest.samples_done
            is_there = samples_done >= samples or self.store.is_concluded(job_id)
            if is_there or time.monotonic() >= deadline_s:
                return newest
            time.sleep(_POLL_S)

    def about(self, checkpoint: Checkpoint) -> A:
        """Return what a state has besides its tensors.

        Raises:
            ValueError: it is of another runner or format.
        """
        if self.ABOUT_FILE not in checkpoint.files:
            raise ValueError(f"the checkpoint {checkpoint.path} lacks {self.ABOUT_FILE}")
        return self.ABOUT.model_validate_json(checkpoint.files[self.ABOUT_FILE])

    def write(
        self, job_id: str, generation: int, samples_done: int, files: Mapping[str, bytes], about: A
    ) -> None:
        """Write a state.

        Raises:
            StaleWriterError: a later generation wrote a state, or the job is finished.
            OSError: the store failed; the state before is kept.
        """
        content = {**files, self.ABOUT_FILE: about.model_dump_json().encode()}
        self.store.save(job_id, generation, samples_done, content)

    def record(self, checkpoint: Checkpoint) -> F | None:
        """Return the record of a finished job; None if the job continues.

        Raises:
            ValueError: it is of another format.
        """
        if FINISHED_JOB in checkpoint.files:
            return self.FINISHED.model_validate_json(checkpoint.files[FINISHED_JOB])
        if checkpoint.path.name == FINAL:
            raise ValueError(f"the record {checkpoint.path} of a finished job lacks {FINISHED_JOB}")
        return None

    def record_of(self, checkpoint: Checkpoint, work: object, result: str) -> F | None:
        """Return the record of a finished job as `record` does.

        Raises:
            ValueError: it is of other work, of another user, or of another format.
        """
        record = self.record(checkpoint)
        if record is None or record.identity == (work, result):
            return record
        of_work, path = record.identity
        other = "another workload" if of_work != work else f"{path}, not {result}"
        raise ValueError(f"the record {checkpoint.path} of a finished job is of {other}")

    def conclude(
        self, job_id: str, generation: int, samples_done: int, record: F, files: Mapping[str, bytes]
    ) -> None:
        """Replace the states of a finished job by its record; a repeated call removes the remains of a crash.

        Raises:
            StaleWriterError: a later generation wrote a state.
            OSError: the store failed; the states are kept.
        """
        content = {**files, FINISHED_JOB: record.model_dump_json().encode()}
        self.store.conclude(job_id, generation, samples_done, content)
