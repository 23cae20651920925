"""The ranks of a task, as the one that trains its jobs: what a task asks of them, however they share the
work."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from executors.gang.meeting import Meeting
from executors.lora.task import AdapterState
from executors.tuner.faults import FieldError, JobError
from executors.tuner.opening import Job
from executors.tuner.training import Step
from schemas.merging.reports import MeasuredStep

Succession = Literal["none", "coming", "ready"]
"""Whether another task is about to take the ranks over as they are connected: `coming` while that is being
prepared beside the training, `ready` when it may be left to with the next step."""

_DIGEST_DIGITS = 13
"""Fit the 53 bits that a float64 keeps."""


class LastStep(NamedTuple):
    """The step with which a task has left its ranks to another."""

    ended_s: float
    """When this rank had computed it, by the monotonic clock."""
    wait: Callable[[], None]
    """Until it is over on all ranks; raises OSError if what it came to is lost."""
    state: Callable[[], AdapterState]
    """Waits likewise, and returns what the task came to; for the leader."""


class Team(Protocol):
    """One rank's share in the training of a task. All ranks call the same methods in the same order.

    Attributes:
        jobs: of the task, in the order of the command.
        can_reunite: whether the ranks that are left go on where they were, when one was lost and is started
            again.
        micro_batch_size: sequences that are computed at a time, at most.
    """

    jobs: list[Job]
    can_reunite: bool
    micro_batch_size: int

    @property
    def is_joined(self) -> bool:
        """Whether the ranks are connected."""

    @property
    def succession(self) -> Succession:
        """As of the last step, the same on all ranks."""

    def join(self, meeting: Meeting | None) -> None:
        """Connect with the others; a rank without others has no meeting.

        Raises:
            PeerLostError: one does not come.
        """

    def agree(self) -> None:
        """Have all ranks hold what the leader holds.

        Raises:
            JobError: they have not the same data.
            PeerLostError: one is gone; so for all that follow.
        """

    def leave(self) -> None:
        """Disconnect, unless the connections were left to another task."""

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Tell some numbers, and return those of all ranks by rank."""

    def begin(self, active: Sequence[Job]) -> None:
        """A phase begins: these jobs are in training from now on."""

    def upcoming(self) -> list[int]:
        """How many sequences of the next step are of each of the jobs in training."""

    def step(self, signals: Sequence[float]) -> Step:
        """Train one batch. The jobs are moved on by the caller.

        Args:
            signals: what this rank has to say to all.

        Raises:
            DivergedError: loss or gradient is not finite. The adapter is as it was, on all ranks.
        """

    def rehearse(self) -> None:
        """Compute the gradient of a batch, or of as much of it as needs most memory, and forget it."""

    def count_right(self, job: Job, count: int) -> tuple[int, int]:
        """How many of the labels that bear loss in the first `count` records of a job's validation data are
        predicted right, and how many there are."""

    def measured(self, steps: Sequence[Step]) -> MeasuredStep:
        """What the present configuration was seen to take."""

    @property
    def state_bytes(self) -> int:
        """What adapter, gradient and moments take on this rank's device."""

    def state(self) -> AdapterState | None:
        """Copy the state to the leader's host memory; None off the leader."""

    def last_state(self) -> Callable[[], AdapterState] | None:
        """Likewise of an adapter that is trained no more, copied when it is asked for."""

    def remains(self) -> Callable[[], AdapterState] | None:
        """What the leader alone has of the state when others are gone; None if that is too little."""

    def leave_to_successor(self) -> LastStep:
        """Take a last step, and leave the connected ranks to the task that is `ready`."""


def agree_on_positions(gather: Callable[[Sequence[int]], list[list[int]]], jobs: Sequence[Job]) -> None:
    """Have the jobs be where the leader has them.

    Args:
        gather: tells all ranks some numbers, and returns those of all by rank.

    Raises:
        JobError: data differs between the nodes.
    """
    digests = [int(job.loader.digest[:_DIGEST_DIGITS], 16) for job in jobs]
    positions = [(job.iterations, job.drawn, int(job.is_over), job.merged_at) for job in jobs]
    told = gather([*digests, *(number for position in positions for number in position)])
    for index, job in enumerate(jobs):
        if len({each[index] for each in told}) > 1:
            fault = FieldError("dataset.path", f"{job.task.dataset} differs between the nodes")
            raise JobError(job.job_id, fault)
    leaders = told[0][len(digests) :]
    for index, job in enumerate(jobs):
        job.iterations, job.drawn, is_over, job.merged_at = leaders[4 * index : 4 * index + 4]
        job.is_over = bool(is_over)
