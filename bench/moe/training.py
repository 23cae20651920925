"""The part `training`: times of steps under Lina, and of steps with unordered collectives (Figure 4.14)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean, median
from typing import Any

from bench.figures import Conditions, Measurement, Result, Table
from bench.moe.training_rank import BASELINE, UNCUT_BYTES, ModelShape, Variant, measure_training
from bench.network import run_on_limited_network
from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord

_WORLD = 4
_FULL = ModelShape(
    experts=_WORLD, layers=3, hidden=1024, dense=384, inner=128, tokens=512, bucket_bytes=3 * 2**20
)
_QUICK = replace(_FULL, layers=2, dense=192, inner=64, tokens=256, bucket_bytes=3 * 2**19)
_PARTITIONS_PER_BUCKET = 2

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


def measure_training_part(conditions: Conditions) -> Result:
    """Measure steps of the baseline and of Lina in turns, and averages of gradients, whole and in micro-ops,
    in turns."""
    shape = _QUICK if conditions.quick else _FULL
    partition_bytes = shape.dense_bytes // _PARTITIONS_PER_BUCKET
    variants = (BASELINE, Variant("lina", partition_bytes=partition_bytes, chunks=2, per_device=2))
    rounds = 4 if conditions.quick else 7
    results, network = run_on_limited_network(
        measure_training,
        _WORLD,
        shape=asdict(shape),
        variants=[asdict(each) for each in variants],
        rounds=rounds,
        seed=conditions.seed,
        partitions_bytes=[UNCUT_BYTES, partition_bytes],
    )
    baseline, lina = (
        medians(read_steps(results, each.name, shape.experts // each.per_device)) for each in variants
    )
    by_partition = zip(*(result["averages_s"] for result in results), strict=True)
    whole_s, cut_s = (min(map(max, zip(*ranks, strict=True))) for ranks in by_partition)
    where = (
        f"{network}; {shape.layers} layers of {shape.experts} experts, "
        f"{shape.exchanged_bytes / 2**20:g} MiB of tokens a rank and {shape.dense_bytes / 2**20:g} MiB of "
        "gradients in each"
    )
    span_pct = 100 * (lina.allreduce_span_s / baseline.allreduce_span_s - 1)
    figures = (
        (
            "all_to_all_speedup",
            baseline.all_to_all_backward_s / lina.all_to_all_backward_s,
            f"all-to-alls of the backward pass, medians {baseline.all_to_all_backward_s:.2f} s unscheduled "
            f"and {lina.all_to_all_backward_s:.2f} s",
        ),
        (
            "step_speedup",
            baseline.step_s / lina.step_s,
            f"medians {baseline.step_s:.2f} s unscheduled and {lina.step_s:.2f} s",
        ),
        (
            "partition_overhead_pct",
            100 * (cut_s - whole_s) / lina.step_s,
            f"a step's gradients averaged with nothing else running, at the least {whole_s:.3f} s whole and "
            f"{cut_s:.3f} s in micro-ops, over a step; the thesis: 1.02",
        ),
        (
            "allreduce_slowdown_pct",
            100 * (lina.allreduce_s / baseline.allreduce_s - 1),
            f"running times of a step's allreduces added up, with those of packed experts; from the first "
            f"gradients to the last average {span_pct:+.1f} %; the thesis: 1.7",
        ),
    )
    rows = [{"variant": name, **asdict(times)} for name, times in ((BASELINE.name, baseline), ("lina", lina))]
    return Result(
        tuple(Measurement(name, value, f"{note}; {where}", rounds) for name, value, note in figures),
        (Table("training_steps", rows),),
    )
