"""What a training step took, from what its ranks have noted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Any

from executors.moe.parallel.micro_ops import Kind
from executors.moe.parallel.trace import MicroOpRecord

Interval = tuple[float, float]


@dataclass(frozen=True)
class RankStep:
    """A step as one rank saw it; times are of a clock that all ranks share.

    Attributes:
        began_s, turned_s, ended_s: of the forward pass, its end, and the end of the backward pass.
        micro_ops: in the order in which they ended.
        computed: what experts computed, named by layer and pass, from when, until when.
    """

    began_s: float
    turned_s: float
    ended_s: float
    micro_ops: Sequence[MicroOpRecord]
    computed: Sequence[tuple[str, float, float]]

    @classmethod
    def read(cls, noted: Mapping[str, Any]) -> "RankStep":
        """From JSON."""
        micro_ops = [
            MicroOpRecord(**{**record, "kind": Kind(record["kind"])}) for record in noted["micro_ops"]
        ]
        computed = [(name, began_s, ended_s) for name, began_s, ended_s in noted["computed"]]
        return cls(noted["began_s"], noted["turned_s"], noted["ended_s"], micro_ops, computed)

    def all_to_alls(self, direction: str) -> list[MicroOpRecord]:
        """Those of tokens in a pass, in the order of their submission."""
        return [
            record
            for record in self.micro_ops
            if record.kind is Kind.ALL_TO_ALL and f" {direction} " in record.label
        ]

    @property
    def allreduces(self) -> list[MicroOpRecord]:
        """Those of gradients."""
        return [record for record in self.micro_ops if record.kind is Kind.ALLREDUCE]


@dataclass(frozen=True)
class StepTimes:
    """A step, or the median of some, in seconds.

    Attributes:
        step_s, forward_s, backward_s: from the first rank's begin to the last one's end.
        layers_forward_s, layers_backward_s: MoE layers: from the first exchange or computation of each to its
            last, added up; mean over ranks.
        all_to_all_forward_s, all_to_all_backward_s: during which at least one all-to-all of tokens was under
            way or waited for its turn: from when the last rank had come to it to when the last had ended it;
            mean over groups of ranks.
        allreduce_s: allreduce micro-ops from issue to end, added up; mean over ranks.
        allreduce_span_s: from when the first gradients were there to when the last were averaged.
        efficiency: share of the time of all-to-alls in which the experts computed; mean over ranks.
    """

    step_s: float
    forward_s: float
    backward_s: float
    layers_forward_s: float
    layers_backward_s: float
    all_to_all_forward_s: float
    all_to_all_backward_s: float
    allreduce_s: float
    allreduce_span_s: float
    efficiency: float

    @property
    def all_to_all_s(self) -> float:
        """Of both passes."""
        return self.all_to_all_forward_s + self.all_to_all_backward_s


def step_times(ranks: Sequence[RankStep], group_size: int) -> StepTimes:
    """What a step took.

    Args:
        ranks: the step on each of them.
        group_size: neighbours that exchange tokens among themselves.
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
        layers_forward_s=fmean(_layers_s(rank, "forward") for rank in ranks),
        layers_backward_s=fmean(_layers_s(rank, "backward") for rank in ranks),
        all_to_all_forward_s=fmean(_all_to_all_s(group, "forward") for group in groups),
        all_to_all_backward_s=fmean(_all_to_all_s(group, "backward") for group in groups),
        allreduce_s=sum(record.completed_s - record.issued_s for record in allreduces) / len(ranks),
        allreduce_span_s=allreduce_span_s,
        efficiency=fmean(_efficiency(rank) for rank in ranks),
    )


def medians(steps: Sequence[StepTimes]) -> StepTimes:
    """Of each field by itself."""
    return StepTimes(
        **{each.name: median(getattr(step, each.name) for step in steps) for each in fields(StepTimes)}
    )


def read_steps(results: Sequence[Mapping[str, Any]], name: str, group_size: int) -> list[StepTimes]:
    """The steps of a variant, from what `training_rank.measure_steps` returned on each rank."""
    by_step = zip(*(result["steps"][name] for result in results), strict=True)
    return [step_times([RankStep.read(noted) for noted in step], group_size) for step in by_step]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points, in intervals that do not touch, in order."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif end > begin:
            joined.append((begin, end))
    return joined


def common_s(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """How long both last, of intervals as `merged` gives them."""
    return sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in first
        for other_begin, other_end in second
    )


def total_s(intervals: Iterable[Interval]) -> float:
    """How long they last together."""
    return sum(end - begin for begin, end in intervals)


def _all_to_all_s(group: Sequence[RankStep], direction: str) -> float:
    by_exchange = zip(*(rank.all_to_alls(direction) for rank in group), strict=True)
    return total_s(
        merged(
            (max(each.submitted_s for each in records), max(each.completed_s for each in records))
            for records in by_exchange
        )
    )


def _layers_s(rank: RankStep, direction: str) -> float:
    spans: dict[str, list[float]] = {}
    for name, began_s, ended_s in rank.computed:
        if name.endswith(direction):
            spans.setdefault(name, []).extend((began_s, ended_s))
    for record in rank.all_to_alls(direction):
        name = record.label.rpartition(" ")[0]
        spans.setdefault(name, []).extend((record.submitted_s, record.completed_s))
    return sum(max(times_s) - min(times_s) for times_s in spans.values())


def _efficiency(rank: RankStep) -> float:
    exchanges = merged(
        (record.submitted_s, record.completed_s)
        for direction in ("forward", "backward")
        for record in rank.all_to_alls(direction)
    )
    if not exchanges:
        return 0.0
    computed = merged((began_s, ended_s) for _, began_s, ended_s in rank.computed)
    return common_s(exchanges, computed) / total_s(exchanges)
