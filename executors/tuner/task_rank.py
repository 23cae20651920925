"""Protocol of the ranks of a task that train its jobs, for each division of the work; their meeting."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from executors.gang.folder import JobFolder
from executors.gang.meeting import Assembly, Meeting
from executors.gang.messages import Membership
from executors.lora.lora_task import AdapterState
from executors.tuner.faults import FieldError, HaltedError, JobError
from executors.tuner.opening import TrainingJob
from executors.tuner.training import TrainingStep
from schemas.merging.reports import MeasuredStep

Succession = Literal["none", "coming", "ready"]
"""State of a takeover of the connected ranks by another task: `coming` while that task is prepared during the
training, `ready` when the next step may switch to it."""

_DIGEST_DIGITS = 13
"""Digits that fit the 53 bits of a float64."""


class LastStep(NamedTuple):
    """The last step of a task that leaves its ranks to another."""

    ended_s: float
    """End of this rank's computation, on the monotonic clock."""
    wait: Callable[[], None]
    """Waits until the step is over on all ranks; raises OSError if its result is lost."""
    state: Callable[[], AdapterState]
    """Waits as well, and returns the final state; for the leader."""


class TaskRank(Protocol):
    """One rank's share in the training of a task. All ranks call the same methods in the same order.

    Attributes:
        jobs: jobs of the task, in the order of the command.
        can_reunite: whether the remaining ranks continue from their state after one was lost and restarted.
        micro_batch_size: most sequences per pass.
    """

    jobs: list[TrainingJob]
    can_reunite: bool
    micro_batch_size: int

    @property
    def is_joined(self) -> bool:
        """Whether the ranks are connected."""

    @property
    def succession(self) -> Succession:
        """Return the state of a takeover as of the last step, the same on all ranks."""

    def join(self, meeting: Meeting | None) -> None:
        """Connect with the other ranks; a single rank has no meeting.

        Raises:
            PeerLostError: a rank does not connect.
        """

    def agree(self) -> None:
        """Set the leader's state on all ranks.

        Raises:
            JobError: their data differ.
            PeerLostError: a rank is lost; also raised by all methods below.
        """

    def leave(self) -> None:
        """Disconnect, unless the connections were left to another task."""

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Send some numbers to all ranks, and return those of all by rank."""

    def begin(self, active: Sequence[TrainingJob]) -> None:
        """Begin a phase with these jobs in training."""

    def upcoming(self) -> list[int]:
        """Return the number of sequences of the next step, by job in training."""

    def step(self, signals: Sequence[float]) -> TrainingStep:
        """Train one batch. The caller advances the positions of the jobs.

        Args:
            signals: numbers that this rank sends to all.

        Raises:
            DivergedError: loss or gradient is not finite. The adapter is unchanged on all ranks.
        """

    def rehearse(self) -> None:
        """Compute and discard the gradient of a batch, or of the part of it that needs most memory."""

    def count_right(self, job: TrainingJob, count: int) -> tuple[int, int]:
        """Count the correct predictions of labels that bear loss in the first `count` records of a job's
        validation data, and these labels."""

    def measured(self, steps: Sequence[TrainingStep]) -> MeasuredStep:
        """Return the measurement of the present configuration."""

    @property
    def state_bytes(self) -> int:
        """Return the memory of adapter, gradient and moments on this rank's device (bytes)."""

    def state(self) -> AdapterState | None:
        """Copy the state to the leader's host memory; None off the leader."""

    def last_state(self) -> Callable[[], AdapterState] | None:
        """Return a function that copies the final state of an adapter to the leader's host memory; None off
        the leader."""

    def remains(self) -> Callable[[], AdapterState] | None:
        """Return a function for the state that the leader alone has after the loss of others; None if that is
        incomplete."""

    def leave_to_successor(self) -> LastStep:
        """Run a last step, and leave the connected ranks to the task that is `ready`."""


def agree_on_positions(
    gather: Callable[[Sequence[int]], list[list[int]]], jobs: Sequence[TrainingJob]
) -> None:
    """Set the jobs to the leader's positions.

    Args:
        gather: sends numbers to all ranks, and returns those of all by rank.

    Raises:
        JobError: data differs between the nodes.
    """
    digests = [int(job.loader.digest[:_DIGEST_DIGITS], 16) for job in jobs]
    positions = [(job.iterations, job.drawn, int(job.is_over), job.merged_at) for job in jobs]
    gathered = gather([*digests, *(number for position in positions for number in position)])
    for index, job in enumerate(jobs):
        if len({each[index] for each in gathered}) > 1:
            fault = FieldError("dataset.path", f"{job.task.dataset} differs between the nodes")
            raise JobError(job.job_id, fault)
    leaders = gathered[0][len(digests) :]
    for index, job in enumerate(jobs):
        job.iterations, job.drawn, is_over, job.merged_at = leaders[4 * index : 4 * index + 4]
        job.is_over = bool(is_over)


def come_together(
    folder: JobFolder, membership: Membership, host: str, timeout_s: float, is_halted: Callable[[], bool]
) -> Meeting | None:
    """Wait until all ranks of a task have joined; a single rank needs no meeting.

    A lost rank 0 is restarted, and opens another meeting of the same generation.

    Args:
        folder: folder of the meeting.
        host: address at which the others reach this rank.
        is_halted: whether the part is to end. It still joins if all others have joined.

    Raises:
        HaltedError: the part is halted before.
        PeerFailedError: another rank has written why it does not join, or not all have joined in time.
    """
    if membership.world == 1:
        return None
    assembly = Assembly(folder, host, reopens=True)
    meeting = assembly.come_together(membership, timeout_s, is_needed=lambda: not is_halted())
    if meeting is None:
        raise HaltedError
    return meeting
