"""Assignments of a node, until their runs are over and reported, and objections to them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, TypeAdapter

from executors.gang.messages import Members, Membership
from executors.gang.rank_runner import StopReason
from executors.node.runner import Objection
from executors.tuner.messages import meeting_of
from schemas.base import Identifier, Record, RunId
from schemas.merging.commands import JobOrder, ProfileOrdered, TaskAssigned, TaskReleaseReason
from schemas.merging.settings import STAGES_PER_PIPELINE

_DISCARDED: frozenset[TaskReleaseReason] = frozenset({"withdrawn", "failed"})


class Ending(Record):
    """Reason of the end of an assignment."""

    reason: TaskReleaseReason | StopReason
    job_ids: tuple[Identifier, ...]
    """The jobs that the reason applies to; other jobs of the task are checkpointed."""

    @property
    def weight(self) -> int:
        """Rank of a release: a release with a higher one replaces the one before."""
        return 2 if self.reason in _DISCARDED else int(self.reason == "undone")

    def discards(self, job_id: str) -> bool:
        """Return whether nothing of a job is kept, including its published files."""
        return self.reason in _DISCARDED and job_id in self.job_ids

    def resets(self, job_id: str) -> bool:
        """Return whether a job that is not over restarts without its state."""
        return self.reason == "undone" and job_id in self.job_ids


class AssignmentState(Record):
    """State of an assignment, as stored in the journal."""

    command: Annotated[TaskAssigned | ProfileOrdered, Field(union_mode="left_to_right")]
    over: tuple[RunId, ...]
    """Runs whose end is reported."""
    ending: Ending | None
    is_stopped: bool


STATES: TypeAdapter[list[AssignmentState]] = TypeAdapter(list[AssignmentState])


@dataclass
class NodeAssignment:
    """A command that is being carried out."""

    command: TaskAssigned | ProfileOrdered
    part: int
    over: set[str] = field(default_factory=set)
    ending: Ending | None = None
    is_stopped: bool = False
    """Whether its ranks here ended by a command to another node. Its runs are over once this node receives
    the command."""
    ranks_left: int | None = None
    """Number of ranks here that still run it; None while it waits for ranks."""
    given_gpus: tuple[int, ...] = ()
    """GPUs of its ranks, by rank."""

    @property
    def orders(self) -> tuple[JobOrder, ...]:
        return orders_of(self.command)

    @property
    def job_ids(self) -> set[str]:
        return {order.job_id for order in self.orders}

    @property
    def generation(self) -> int:
        """Generation of its task; 0 for a profile run."""
        return self.command.generation if isinstance(self.command, TaskAssigned) else 0

    @property
    def open_runs(self) -> list[str]:
        return [order.run_id for order in self.orders if order.run_id not in self.over]

    @property
    def has_begun(self) -> bool:
        return self.ranks_left is not None

    @property
    def is_released(self) -> bool:
        return self.ending is not None

    @property
    def goes_on(self) -> bool:
        return not self.is_released and not self.is_stopped

    @property
    def is_over(self) -> bool:
        # One that was halted on other nodes waits for this node's command, which has the reason.
        return self.ranks_left == 0 and (self.is_released or not self.is_stopped or not self.open_runs)

    @property
    def leads(self) -> bool:
        """Whether this node reports for all nodes."""
        return isinstance(self.command, ProfileOrdered) or self.command.members[0].node == self.command.node

    @property
    def gpus(self) -> int:
        """Number of its ranks on this node."""
        return len(self._ranks)

    @property
    def world(self) -> int:
        """Number of its ranks on all nodes."""
        return members_of(self.command).world

    @property
    def meeting(self) -> str:
        return meeting_of(self.command)

    @property
    def meeting_generation(self) -> int:
        """Generation of its task, by which the meetings at one place are distinguished."""
        return self.generation or self.part

    def memberships(self) -> Iterator[Membership]:
        """Yield the memberships of its ranks here."""
        for rank in self._ranks:
            yield Membership(generation=self.meeting_generation, rank=rank, world=self.world)

    @property
    def _ranks(self) -> range:
        return members_of(self.command).ranks_of(self.command.node)

    def can_follow(self, other: "NodeAssignment") -> bool:
        """Return whether it can take over the connected ranks of `other`: both are pipeline-parallel tasks
        with the same number of ranks, all on this node."""
        return all(
            isinstance(each.command, TaskAssigned)
            and each.orders[0].workload.pipeline
            and each.gpus == each.world == self.world
            for each in (self, other)
        )

    def state(self) -> AssignmentState:
        return AssignmentState(
            command=self.command,
            over=tuple(sorted(self.over)),
            ending=self.ending,
            is_stopped=self.is_stopped,
        )


def orders_of(command: TaskAssigned | ProfileOrdered) -> tuple[JobOrder, ...]:
    return (command.order,) if isinstance(command, ProfileOrdered) else command.orders


def members_of(command: TaskAssigned | ProfileOrdered) -> Members:
    if isinstance(command, ProfileOrdered):
        return Members(((command.node, command.gpus),))
    return Members(tuple((member.node, member.gpus) for member in command.members))


def objection_to(command: TaskAssigned | ProfileOrdered, gpus_here: int) -> Objection | None:
    """Check that a command is consistent: its members are distinct, its GPUs exist and are within the limits
    of its jobs, and the jobs may be merged.

    Args:
        gpus_here: GPUs of this node.
    """
    members = members_of(command).objection(command.node, gpus_here)
    if isinstance(command, TaskAssigned):
        return _pipeline(command.orders[0], command, "task") or members or _merge(command)
    if command.gpus > 1 and not command.order.workload.pipeline:
        return Objection("impossible", f"a profile run on {command.gpus} GPUs: only pipelines have more")
    return _pipeline(command.order, command, "profile run") or members


def _pipeline(order: JobOrder, command: TaskAssigned | ProfileOrdered, name: str) -> Objection | None:
    gpus = members_of(command).world
    if not order.workload.pipeline or gpus % STAGES_PER_PIPELINE == 0:
        return None
    return Objection(
        "impossible",
        f"{order.job_id} is pipeline-parallel: a {name} of it has a multiple of {STAGES_PER_PIPELINE} GPUs, "
        f"not {gpus}",
    )


def _merge(command: TaskAssigned) -> Objection | None:
    jobs = [order.job_id for order in command.orders]
    if len(set(jobs)) < len(jobs):
        return Objection("impossible", f"{jobs[0]} is merged with itself")
    for order in command.orders if command.mode != "normal" else ():
        if order.workload.pipeline:
            return Objection("impossible", f"{order.job_id} is pipeline-parallel, and is merged")
        if not order.workload.sharing:
            return Objection("impossible", f"{order.job_id} does not share, and is merged")
    return None
