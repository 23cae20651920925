"""Order of a step's collectives as a plan, made from measured times and the same on all ranks."""

import hashlib
import json
import queue
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from executors.gang.group import DisagreementError
from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord
from executors.moe.parallel.scheduler import Order


@dataclass(frozen=True)
class MeasuredAllreduce:
    """An allreduce micro-op of a measured step.

    Attributes:
        all_to_alls_before: number of the step's all-to-all micro-ops submitted before this one.
        ready_s: seconds from the end of the all-to-all before it to its submission; 0 if that had not ended.
        duration_s: its duration when it runs alone.
    """

    all_to_alls_before: int
    ready_s: float
    duration_s: float


@dataclass(frozen=True)
class StepPlan:
    """Interleaving of the micro-ops of a step.

    Attributes:
        all_to_alls_before: for each allreduce micro-op of a step, in the order of submission, number of the
            step's all-to-all micro-ops that are issued before it. Never decreases.
    """

    all_to_alls_before: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(later < earlier for earlier, later in pairwise(self.all_to_alls_before)):
            raise ValueError(
                f"plan {list(self.all_to_alls_before)}: the values must not decrease, since allreduces keep "
                "their order"
            )

    @property
    def digest(self) -> str:
        """Return a digest, by which ranks compare their plans."""
        return hashlib.sha256(json.dumps(self.all_to_alls_before).encode()).hexdigest()[:16]


def measured_step(
    records: Iterable[MicroOpRecord], began_s: float
) -> tuple[list[float], list[MeasuredAllreduce]]:
    """Return the input of `plan_step`, from one rank's trace of a step that began at `began_s` without a
    plan."""
    gaps_s: list[float] = []
    allreduces: list[MeasuredAllreduce] = []
    end_s = began_s  # of the all-to-alls so far
    for record in sorted(records, key=lambda record: record.submitted_s):
        after_s = max(record.submitted_s - end_s, 0.0)
        if record.kind is CollectiveKind.ALL_TO_ALL:
            gaps_s.append(after_s)
            end_s = record.completed_s
        else:
            duration_s = record.completed_s - record.issued_s
            allreduces.append(MeasuredAllreduce(len(gaps_s), after_s, duration_s))
    return gaps_s, allreduces


def plan_step(gaps_s: Sequence[float], allreduces: Sequence[MeasuredAllreduce]) -> StepPlan:
    """Place each allreduce micro-op in the first gap between all-to-alls that it fits into, or behind all.

    An allreduce that does not end in its gap would delay an all-to-all (section 4.4.1), so each is placed
    where it ends in time.

    Args:
        gaps_s: for each all-to-all micro-op of the step, time from the end of the one before it to its
            submission; 0 if it is submitted before that end.
        allreduces: allreduce micro-ops in the order of submission.
    """
    all_to_alls_before: list[int] = []
    gap, used_s = 0, 0.0
    for each in allreduces:
        if each.all_to_alls_before > gap:
            gap, used_s = each.all_to_alls_before, 0.0
        while gap < len(gaps_s):
            begins_s = max(used_s, each.ready_s if gap == each.all_to_alls_before else 0.0)
            if begins_s + each.duration_s <= gaps_s[gap]:
                used_s = begins_s + each.duration_s
                break
            gap, used_s = gap + 1, 0.0
        all_to_alls_before.append(gap)
    return StepPlan(tuple(all_to_alls_before))


class PlannedOrder(Order):
    """The planned order of collectives; decided by each rank alone, and the same on all of them.

    It follows from the plan and from the order in which the program submits, which is the same on all ranks.
    An allreduce micro-op is issued when the planned number of all-to-alls has been submitted before it. If
    more have been submitted, it is issued at once. So NCCL, where the thread submits micro-ops to the device
    long before they run, has one order on all ranks (erratum I3), and one communicator runs them one after
    another. A plan cannot guarantee that an all-to-all never waits behind more than one allreduce micro-op:
    if a gap is shorter than measured, it waits for all that were placed there.

    Nothing is exchanged with other ranks, which detect a failure by their timeouts.

    Until the first `begin_step`, and after the plan's last micro-op, the order is that of submission.
    """

    def __init__(self) -> None:
        self._to_issue: queue.SimpleQueue[CollectiveKind] = queue.SimpleQueue()
        self._plan = StepPlan(())
        self._all_to_alls = 0
        self._allreduces = 0
        self._deferred: deque[int] = deque()

    def begin_step(self, plan: StepPlan) -> None:
        """Use a plan for the step that begins. All methods except `next` belong to the submitting thread.

        Raises:
            DisagreementError: the step before had fewer all-to-alls than its plan, and allreduces still wait.
        """
        if self._deferred:
            raise DisagreementError(
                f"the step had {self._all_to_alls} all-to-all micro-ops, but its plan has allreduces after "
                f"{self._deferred[0]}: plan again when the model or the partition size changes"
            )
        self._plan = plan
        self._all_to_alls = self._allreduces = 0

    def submitted(self, kind: CollectiveKind, label: str) -> None:  # noqa: ARG002
        if kind is CollectiveKind.ALL_TO_ALL:
            self._to_issue.put(kind)
            self._all_to_alls += 1
            while self._deferred and self._deferred[0] <= self._all_to_alls:
                self._deferred.popleft()
                self._to_issue.put(CollectiveKind.ALLREDUCE)
            return
        before = self._plan.all_to_alls_before
        planned = before[self._allreduces] if self._allreduces < len(before) else 0
        self._allreduces += 1
        if self._deferred or planned > self._all_to_alls:
            self._deferred.append(max(planned, self._deferred[-1] if self._deferred else 0))
        else:
            self._to_issue.put(kind)

    def next(self, wait_s: float) -> CollectiveKind | None:
        """Return the kind to issue next; None if none was submitted during the wait."""
        try:
            return self._to_issue.get(timeout=wait_s)
        except queue.Empty:
            return None
