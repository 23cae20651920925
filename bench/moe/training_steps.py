"""Times of a training step, from the records of its ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Any

from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord

Interval = tuple[float, float]


@dataclass(frozen=True)
class RankStep:
    """A step as recorded by one rank; times are of a clock that all ranks share.

    Attributes:
        began_s, turned_s, ended_s: start of the forward pass, its end, and the end of the backward pass.
        micro_ops: in the order of their ends.
    """

    began_s: float
    turned_s: float
    ended_s: float
    micro_ops: Sequence[MicroOpRecord]

    @classmethod
    def read(cls, noted: Mapping[str, Any]) -> "RankStep":
        """Return the step from JSON values."""
        micro_ops = [
            MicroOpRecord(**{**record, "kind": CollectiveKind(record["kind"])})
            for record in noted["micro_ops"]
        ]
        return cls(noted["began_s"], noted["turned_s"], noted["ended_s"], micro_ops)

    def all_to_alls(self, direction: str) -> list[MicroOpRecord]:
        """Return the all-to-alls of tokens in a pass, in the order of their submission."""
        return [
            record
            for record in self.micro_ops
            if record.kind is CollectiveKind.ALL_TO_ALL and f" {direction} " in record.label
        ]

    @property
    def allreduces(self) -> list[MicroOpRecord]:
        """Allreduces of gradients."""
        return [record for record in self.micro_ops if record.kind is CollectiveKind.ALLREDUCE]


@dataclass(frozen=True)
class StepTimes:
    """Times of a step, or medians over steps, in seconds.

    Attributes:
        step_s, forward_s, backward_s: from the first rank's start to the last one's end.
        all_to_all_forward_s, all_to_all_backward_s: time in which at least one all-to-all of tokens ran or
            waited for its turn, from its submission on the last rank to its last end; mean over groups of
            ranks.
        allreduce_s: sum of allreduce micro-ops from issue to end; mean over ranks.
        allreduce_span_s: from the first available gradients to the last average.
    """

    step_s: float
    forward_s: float
    backward_s: float
    all_to_all_forward_s: float
    all_to_all_backward_s: float
    allreduce_s: float
    allreduce_span_s: float


def step_times(ranks: Sequence[RankStep], group_size: int) -> StepTimes:
    """Compute the times of a step.

    Args:
        ranks: the step on each rank.
        group_size: number of neighbours that exchange tokens among themselves.
    """
    began_s = min(rank.began_s for rank in ranks)
    turned_s = max(rank.turned_s for rank in ranks)
    ended_s = max(rank.ended_s for rank in ranks)
    groups = [ranks[first : first + group_size] for first in range(0, len(ranks), group_size)]
    allreduces = [record for rank in ranks for record in rank.allreduces]
    allreduce_span_s = 0.0
    if allreduces:
        first_s = min(record.submitted_s for record in allreduces)
        allreduce_span_s = max(record.completed_s for record in allreduces) - first_s
    return StepTimes(
        step_s=ended_s - began_s,
        forward_s=turned_s - began_s,
        backward_s=ended_s - turned_s,
        all_to_all_forward_s=fmean(_all_to_all_s(group, "forward") for group in groups),
        all_to_all_backward_s=fmean(_all_to_all_s(group, "backward") for group in groups),
        allreduce_s=sum(record.completed_s - record.issued_s for record in allreduces) / len(ranks),
        allreduce_span_s=allreduce_span_s,
    )


def medians(steps: Sequence[StepTimes]) -> StepTimes:
    """Return the median of each field separately."""
    return StepTimes(
        **{each.name: median(getattr(step, each.name) for step in steps) for each in fields(StepTimes)}
    )


def read_steps(results: Sequence[Mapping[str, Any]], name: str, group_size: int) -> list[StepTimes]:
    """Return the steps of a variant, from the results of `training_rank.measure_training` on each rank."""
    by_step = zip(*(result["steps"][name] for result in results), strict=True)
    return [step_times([RankStep.read(noted) for noted in step], group_size) for step in by_step]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as intervals that do not touch, in order."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif end > begin:
            joined.append((begin, end))
    return joined


def total_s(intervals: Iterable[Interval]) -> float:
    """Return the total duration of intervals."""
    return sum(end - begin for begin, end in intervals)


def _all_to_all_s(group: Sequence[RankStep], direction: str) -> float:
    by_exchange = zip(*(rank.all_to_alls(direction) for rank in group), strict=True)
    return total_s(
        merged(
            (max(each.submitted_s for each in records), max(each.completed_s for each in records))
            for records in by_exchange
        )
    )
