"""Plans whose new merges delay no job, by forecast.

A problem that limits delays (`MergeProblem.most_later`) is solved twice: without new merges, and with them.
The second plan is kept only if, by the lower confidence bounds of the savings of its merges,

- the mean completion time of all jobs is expected to be shorter,
- the longest completion time is expected to be no longer, even if every new merge is undone.

Otherwise the first plan is kept. It is the plan of a zone without merging. So a zone without evidence from
past merges makes the same plans as one that does not merge.
"""

import heapq
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from schemas.merging.problems import MergeProblem, MergeSolution, Share, TransferPair, Unit
from solvers.merging.merger import merge

_PART_FOR_FIRST = 0.5
"""Part of the time limit for the plan without new merges."""


def plan(problem: MergeProblem, time_limit_s: float) -> MergeSolution:
    """Return the best plan found in time; its new merges delay no job on the whole.

    Args:
        time_limit_s: total limit, see `merger.merge`.
    """
    if problem.most_later is None or not problem.transfers:
        return merge(problem, time_limit_s)
    start_s = time.perf_counter()
    unmerged = _without_new_merges(problem)
    without = merge(unmerged, _PART_FOR_FIRST * time_limit_s)
    if not any(unit.part == "any" for unit in problem.units):
        return without  # every merge has a job without progress
    merged = merge(problem, start_s + time_limit_s - time.perf_counter())
    is_better = bool(new_merges(problem, merged.shares)) and _pays(problem, merged, without)
    return merged if is_better else without


def _without_new_merges(problem: MergeProblem) -> MergeProblem:
    """Return the problem with only the merges that are under way."""
    followers = {unit.follower for unit in problem.units if unit.follower is not None}
    if not followers:
        return problem.model_copy(update={"transfers": ()})
    units = tuple(
        unit
        if unit.follower is not None or unit.job_ids[0] in followers
        else unit.model_copy(update={"part": "none"})
        for unit in problem.units
    )
    return problem.model_copy(update={"units": units})


def _pays(problem: MergeProblem, merged: MergeSolution, without: MergeSolution) -> bool:
    """Return whether merges shorten the mean completion time, and never lengthen the longest one."""
    before, after = forecast(problem, without.shares), forecast(problem, merged.shares)
    if after.mean_s >= before.mean_s or after.longest_s > before.longest_s:
        return False
    return forecast(problem, merged.shares, is_undone=True).longest_s <= before.longest_s


class Forecast(NamedTuple):
    """Completion times from submission, in seconds."""

    mean_s: float
    longest_s: float


class _End(NamedTuple):
    """End of a job with GPUs."""

    age_s: float
    """Present time since its submission."""
    after_s: float


def forecast(problem: MergeProblem, shares: Sequence[Share], is_undone: bool = False) -> Forecast:
    """Return the completion times of all jobs of a problem.

    Args:
        shares: shares of a plan for this problem; jobs without one wait.
        is_undone: whether new merges of the plan are undone after the watched epochs, and their jobs start
            again alone.
    """
    return _Forecaster(problem).of(shares, is_undone)


def new_merges(problem: MergeProblem, shares: Sequence[Share]) -> list[Share]:
    """Return the merges of a plan that are not under way."""
    units = {unit.job_ids for unit in problem.units}
    under_way = {(unit.job_ids[0], unit.follower) for unit in problem.units if unit.follower is not None}
    return [
        share
        for share in shares
        if len(share.job_ids) == 2
        and share.job_ids not in units
        and not (share.mode == "temporal" and share.job_ids in under_way)
    ]


class _Forecaster:
    def __init__(self, problem: MergeProblem) -> None:
        self._problem = problem
        self._steps = [
            {step.gpus: step.step_s for step in table if step.gpus <= problem.gpus}
            for table in problem.step_tables
        ]
        self._units = {job_id: unit for unit in problem.units for job_id in unit.job_ids}
        self._transfers: Mapping[tuple[str, int, int], TransferPair] = {
            (one.mode, one.donor, one.receiver): one for one in problem.transfers
        }

    def of(self, shares: Sequence[Share], is_undone: bool) -> Forecast:
        undone = {share.job_ids for share in new_merges(self._problem, shares)} if is_undone else set()
        ends: list[_End] = []
        running: list[tuple[float, int]] = []
        for share in shares:
            of_share = list(self._ends(share, share.job_ids in undone))
            ends += of_share
            running.append((max(end.after_s for end in of_share), share.gpus))
        placed = {job_id for share in shares for job_id in share.job_ids}
        waiting = [unit for unit in self._problem.units if placed.isdisjoint(unit.job_ids)]
        ends += self._queued(waiting, running)
        times_s = [end.age_s + end.after_s for end in ends]
        return Forecast(math.fsum(times_s) / len(times_s), max(times_s))

    def _ends(self, share: Share, is_undone: bool) -> Iterator[_End]:
        first = self._units[share.job_ids[0]]
        if share.job_ids == first.job_ids:
            after_s = self._switch_s(first, share.gpus) + self._alone_s(first, share.gpus)
            for _ in first.job_ids:
                yield _End(first.age_s, after_s)
        else:
            yield from self._merged(share, first, self._units[share.job_ids[1]], is_undone)

    def _merged(self, share: Share, donor: Unit, receiver: Unit, is_undone: bool) -> Iterator[_End]:
        donor_s, receiver_s = self._alone_s(donor, share.gpus), self._alone_s(receiver, share.gpus)
        switch_s = 0.0 if donor.follower == receiver.job_ids[0] else self._switch_s(donor, share.gpus)
        donor_ratio, receiver_ratio = self._ratios(share.mode, donor, receiver)
        watched = self._problem.watched_epochs
        if share.mode == "temporal":
            donor_end_s = switch_s + donor_s
            lost_s = watched * self._epoch_s(receiver, share.gpus) + self._problem.switch_s
            learning_s = lost_s + receiver_s if is_undone else receiver_ratio * receiver_s
            yield _End(donor.age_s, donor_end_s)
            yield _End(receiver.age_s, donor_end_s + learning_s)
            return
        epoch_s = self._joint_epoch_s(donor, receiver, share.gpus)
        if is_undone:
            first_s, last_s = sorted((donor_s, receiver_s))
            lost_s = switch_s + watched * epoch_s + self._problem.switch_s
            for unit, own_s in ((donor, donor_s), (receiver, receiver_s)):
                is_first = own_s == first_s
                yield _End(unit.age_s, lost_s + (own_s if is_first else first_s + last_s))
            return
        for unit, ratio in ((donor, donor_ratio), (receiver, receiver_ratio)):
            epochs = ratio * unit.iterations / self._epoch(unit)
            yield _End(unit.age_s, switch_s + epochs * epoch_s)

    def _queued(self, waiting: Sequence[Unit], running: list[tuple[float, int]]) -> Iterator[_End]:
        """Yield the ends of waiting jobs, which start as GPUs are released."""
        heapq.heapify(running)
        idle, time_s, left = self._problem.gpus - sum(gpus for _, gpus in running), 0.0, len(waiting)
        for unit in sorted(waiting, key=lambda unit: (self._slowest_s(unit), unit.job_ids)):
            sizes = sorted(self._steps_of(unit))
            if not sizes:
                left -= 1
                continue  # it can run on no number of GPUs
            while idle < sizes[0]:
                time_s, gpus = heapq.heappop(running)
                idle += gpus
            while running and running[0][0] <= time_s:
                idle += heapq.heappop(running)[1]
            fair = max(self._problem.gpus // (len(running) + left), sizes[0])
            size = max(size for size in sizes if size <= min(fair, idle))
            after_s = time_s + self._problem.switch_s + self._alone_s(unit, size)
            heapq.heappush(running, (after_s, size))
            idle, left = idle - size, left - 1
            for _ in unit.job_ids:
                yield _End(unit.age_s, after_s)

    def _ratios(self, mode: str, donor: Unit, receiver: Unit) -> tuple[float, float]:
        """Return the parts of their iterations that a donor and a receiver need."""
        known = self._transfers.get((mode, donor.kind, receiver.kind))
        if known is not None:
            return known.donor_ratio, known.receiver_ratio
        known = self._transfers[mode, receiver.kind, donor.kind]
        return known.receiver_ratio, known.donor_ratio

    def _steps_of(self, unit: Unit) -> Mapping[int, float]:
        return self._steps[self._problem.kinds[unit.kind].step_table]

    def _alone_s(self, unit: Unit, gpus: int) -> float:
        """Return the duration alone with so many GPUs, or the largest valid number below."""
        steps = self._steps_of(unit)
        step_s = min((step_s for size, step_s in steps.items() if size <= gpus), default=math.inf)
        return unit.iterations * step_s

    def _slowest_s(self, unit: Unit) -> float:
        return unit.iterations * max(self._steps_of(unit).values(), default=0.0)

    def _switch_s(self, unit: Unit, gpus: int) -> float:
        return 0.0 if unit.gpus == gpus else self._problem.switch_s

    def _epoch(self, unit: Unit) -> int:
        """Return the steps of an epoch."""
        kind = self._problem.kinds[unit.kind]
        return -(-kind.dataset_samples // kind.samples_per_step)

    def _epoch_s(self, unit: Unit, gpus: int) -> float:
        return self._epoch(unit) * self._alone_s(unit, gpus) / unit.iterations

    def _joint_epoch_s(self, donor: Unit, receiver: Unit, gpus: int) -> float:
        """Return the duration of an epoch of a spatial merge, of joint steps (Eq. 4, erratum Y3)."""
        kinds = [self._problem.kinds[unit.kind] for unit in (donor, receiver)]
        samples = sum(kind.dataset_samples for kind in kinds)
        batch = sum(kind.samples_per_step for kind in kinds)
        step_s = sum(self._alone_s(unit, gpus) / unit.iterations for unit in (donor, receiver))
        return samples / batch * step_s
