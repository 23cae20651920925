"""Base of runners whose work is done by ranks, in processes of their own: its loop over assignments."""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from executors.gang.gang_node import GangNode
from executors.node.room import NoRoomError
from executors.node.runner import Activity, Objection, RunnerContext
from executors.settings import GangSettings
from schemas.commands import Command

StopReason = Literal["newer", "disowned", "node_stops"]
"""Reason of an end that no release has ordered. `newer`: the node has a newer assignment of one of its jobs.
`disowned`: the cell has no such run."""

_POLL_S = 0.02

_log = logging.getLogger(__name__)


class LocalAssignment(Protocol):
    """An assignment on its node, from its command until the ends of its runs are reported."""

    @property
    def command(self) -> Any: ...

    @property
    def job_ids(self) -> Collection[str]: ...

    @property
    def generation(self) -> int: ...

    @property
    def open_runs(self) -> Sequence[str]:
        """Runs whose end is not reported."""

    @property
    def has_begun(self) -> bool:
        """Whether it has ranks, had some, or needs none any more."""

    @property
    def is_released(self) -> bool:
        """Whether its end is ordered."""

    @property
    def goes_on(self) -> bool:
        """Whether it does not end, whether ordered or not."""

    @property
    def is_over(self) -> bool:
        """Whether no rank here has it any more, so that the ends of its runs can be reported."""


S = TypeVar("S", bound=GangSettings)
A = TypeVar("A", bound=LocalAssignment)
C = TypeVar("C")
R = TypeVar("R")


class RankRunner(ABC, Generic[S, A, C, R]):
    """Work of a node that ranks do. See `Runner`.

    A job's assignments follow each other: a newer one ends those before, and begins once they are reported.

    Attributes:
        assignments: assignments that are not over, in the order of their arrival.
    """

    ASSIGNED: ClassVar[tuple[type[Command], ...]]
    """Commands by which ranks get work. Those with a `generation` are newer than all before of their jobs."""
    RELEASED: ClassVar[type[Command]]
    """Command that ends the assignments of jobs up to its `generation`."""

    def __init__(self, context: RunnerContext, settings: S, gpus: int) -> None:
        """Start without work."""
        self._context = context
        self._node = GangNode.of(context, settings, gpus)
        self.assignments: list[A] = []

    # Parts of a runner

    @abstractmethod
    def jobs_of(self, command: Any) -> Collection[str]:
        """Return the jobs of a command that has a generation."""

    @abstractmethod
    def objection(self, command: C) -> Objection | None:
        """Return why an assignment is impossible; None if it is possible."""

    @abstractmethod
    def assignment_of(self, command: C) -> A:
        """Return the assignment of a command, not begun."""

    @abstractmethod
    def begin(self, assignment: A) -> None:
        """Give an assignment its ranks, if enough are free; it is asked for again otherwise."""

    @abstractmethod
    def release(self, assignment: A, command: R) -> None:
        """End an assignment as the cell orders."""

    @abstractmethod
    def stop(self, assignment: A, reason: StopReason) -> None:
        """End an assignment for another reason."""

    @abstractmethod
    def clear(self, job_id: str, command: R) -> None:
        """Remove the files of a job without assignments here, as far as its release demands."""

    @abstractmethod
    def receive(self) -> Iterable[int | None]:
        """Process the messages and the ends of ranks.

        Returns:
            for work that is over, the bytes that a disk refused; None if it had room.
        """

    @abstractmethod
    def settle(self, assignment: A) -> None:
        """Settle the files of an assignment that is over, and report the ends of its runs."""

    def replace(self, assignment: A, command: C) -> bool:  # noqa: ARG002 -- for ranks that continue
        """End an assignment for a newer one; return whether its ranks continue in that one instead."""
        self.stop(assignment, "newer")
        return False

    # Commands

    def validate(self, command: Command) -> Objection | None:
        """See `Runner`. An assignment must be newer than those of its jobs here, and other commands of a
        generation that is here."""
        is_assignment = isinstance(command, self.ASSIGNED)
        if is_assignment and (objection := self.objection(cast(C, command))) is not None:
            return objection
        generation: int | None = getattr(command, "generation", None)
        if generation is None:
            return None
        jobs = self.jobs_of(command)
        newest = max(self.of(jobs), key=lambda each: each.generation, default=None)
        if newest is None:
            nothing = Objection("unknown_run", f"nothing of {', '.join(jobs)} runs here")
            return None if is_assignment else nothing
        if generation > newest.generation or newest.command == command:
            return None
        if generation == newest.generation and not is_assignment:
            return None
        return Objection("out_of_date", f"{', '.join(jobs)} is in generation {newest.generation}")

    def apply(self, command: Command) -> None:
        """See `Runner`. Ranks begin and end in `advance`."""
        if isinstance(command, self.ASSIGNED):
            self._assign(cast(C, command))
        elif isinstance(command, self.RELEASED):
            self._release(command)

    def disown(self, run_id: str, job_id: str) -> None:
        """See `Runner`."""
        for each in self.of((job_id,)):
            if run_id in each.open_runs:
                _log.info("run disowned job=%s run=%s", job_id, run_id)
                self.stop(each, "disowned")

    def held_runs(self) -> list[str]:
        """See `Runner`."""
        return [run_id for each in self.assignments if each.goes_on for run_id in each.open_runs]

    def of(self, jobs: Collection[str]) -> list[A]:
        """Return the assignments of any of these jobs, in the order of their arrival."""
        return [each for each in self.assignments if not set(jobs).isdisjoint(each.job_ids)]

    def _assign(self, command: C) -> None:
        present = self.of(self.jobs_of(command))
        if any(each.command == command and not each.is_released for each in present):
            return  # the order is a duplicate
        continues = [self.replace(each, command) for each in present]
        if not any(continues):
            self.assignments.append(self.assignment_of(command))

    def _release(self, command: Any) -> None:
        jobs = self.jobs_of(command)
        for each in self.of(jobs):
            if each.generation <= command.generation:
                self.release(each, command)
        for job_id in jobs:
            if not self.of((job_id,)):
                self.clear(job_id, command)

    # Work

    @property
    def is_idle(self) -> bool:
        """Whether no work is left."""
        return not self.assignments

    def advance(self) -> Activity:
        """See `Runner`.

        Raises:
            NoRoomError: a disk refused a checkpoint or a result.
        """
        needed_bytes = next((size for size in list(self.advance_ranks()) if size is not None), None)
        if needed_bytes is not None:
            refused = self._context.room.refused(needed_bytes)
            if refused is not None:
                raise NoRoomError(refused, needed_bytes)
        return "idle" if self.is_idle else "waiting"

    def advance_ranks(self) -> Iterator[int | None]:
        """Process messages, settle what is over, and begin what waits for it. See `receive`."""
        yield from self.receive()
        for each in [each for each in self.assignments if each.is_over]:
            self._conclude(each)
        busy: set[str] = set()
        for each in self.assignments:
            if not each.has_begun and busy.isdisjoint(each.job_ids):
                self.begin(each)
            busy.update(each.job_ids)  # a later one resumes from their checkpoints

    def finish_work(self, within_s: float = math.inf) -> None:
        """End all work, for a time at most. Checkpoints without room are lost."""
        for each in self.assignments:
            self.stop(each, "node_stops")
        deadline_s = time.monotonic() + within_s
        while not self.is_idle and time.monotonic() < deadline_s:
            try:
                self.advance()
            except NoRoomError as error:
                _log.error("checkpoint lost node=%s reason=%s", self._node.node, error)
            time.sleep(_POLL_S)

    def _conclude(self, assignment: A) -> None:
        self.settle(assignment)
        self.assignments.remove(assignment)
