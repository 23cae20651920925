"""The part `training`: steps under Lina, and steps with unordered collectives (Figure 4.14)."""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace

from bench.charts import Bars
from bench.figures import Conditions, Measurement, Result, Table
from bench.moe.training_rank import BASELINE, UNCUT_BYTES, ModelShape, Variant, measure_training
from bench.moe.training_steps import StepTimes, medians, read_steps
from bench.network.ranks import run_on_limited_network

_WORLD = 4
_FULL = ModelShape(
    experts=_WORLD, layers=3, hidden=1024, dense=384, inner=128, tokens=512, bucket_bytes=3 * 2**20
)
_QUICK = replace(_FULL, layers=2, dense=192, inner=64, tokens=256, bucket_bytes=3 * 2**19)
_PARTITIONS_PER_BUCKET = 2


_PACKING_ALONE = Variant("packing alone", is_scheduled=False, per_device=2)
"""Two lanes without an order: the part of Lina's gain that is not from the order."""


def designs(partition_bytes: int) -> list[Variant]:
    """Return the baseline, and each choice of Lina's design added to those before; the last one is all of
    Lina."""
    partitioned = Variant("+ partitioning", partition_bytes=partition_bytes)
    pipelined = replace(partitioned, name="+ pipelining", chunks=2)
    return [
        BASELINE,
        Variant("+ two lanes", is_scheduled=False),
        Variant("+ priority"),
        partitioned,
        pipelined,
        replace(pipelined, name="+ packing", per_device=2),
    ]


def measure_training_part(conditions: Conditions) -> Result:
    """Measure steps of the baseline and all of Lina in turns; in full, of all designs."""
    shape = _QUICK if conditions.quick else _FULL
    partition_bytes = shape.dense_bytes // _PARTITIONS_PER_BUCKET
    variants = designs(partition_bytes)
    if conditions.quick:
        variants = [variants[0], variants[-1]]
    others = [] if conditions.quick else [_PACKING_ALONE]
    rounds = 4 if conditions.quick else 7
    run = run_training(
        shape,
        _WORLD,
        [*variants, *others],
        rounds,
        conditions.seed,
        partitions_bytes=(UNCUT_BYTES, partition_bytes),
    )
    return Result(_figures(run, shape, variants, rounds), (_steps(run),))


@dataclass(frozen=True)
class TrainingRun:
    """Measurements of a run.

    Attributes:
        steps: medians of each variant, by name.
        averages_s: least time to average a step's dense gradients alone, on the slowest rank, for each
            partition size.
        network: description of the network.
    """

    steps: dict[str, StepTimes]
    averages_s: list[float]
    network: str


def run_training(
    shape: ModelShape,
    world: int,
    variants: Sequence[Variant],
    rounds: int,
    seed: int,
    partitions_bytes: Sequence[int] = (),
) -> TrainingRun:
    """Measure steps of variants in turn, and averages by each partition size in turn."""
    results, network = run_on_limited_network(
        measure_training,
        world,
        shape=asdict(shape),
        variants=[asdict(each) for each in variants],
        rounds=rounds,
        seed=seed,
        partitions_bytes=list(partitions_bytes),
    )
    steps = {
        each.name: medians(read_steps(results, each.name, shape.experts // each.per_device))
        for each in variants
    }
    by_partition = zip(*(result["averages_s"] for result in results), strict=True)
    averages_s = [min(map(max, zip(*ranks, strict=True))) for ranks in by_partition]
    return TrainingRun(steps, averages_s, network)


def _steps(run: TrainingRun) -> Table:
    """Return the medians of each variant."""
    rows = [(name, "measured", *astuple(times)) for name, times in run.steps.items()]
    columns = ("variant", "source", *(field.name for field in fields(StepTimes)))
    return Table("training_steps", columns, rows, Bars("variant", "source", "step_s", None, "step, s"))


def _figures(
    run: TrainingRun, shape: ModelShape, variants: Sequence[Variant], rounds: int
) -> tuple[Measurement, ...]:
    steps = run.steps
    baseline, lina = steps[variants[0].name], steps[variants[-1].name]
    whole_s, cut_s = run.averages_s
    where = f"{run.network}; {_described(shape)}"
    span_pct = 100 * (lina.allreduce_span_s / baseline.allreduce_span_s - 1)
    between = ""
    if len(variants) > 2:
        lanes, pipelined = steps[variants[1].name], steps[variants[-2].name]
        between = (
            f"; over a baseline with two lanes {_ratio(lanes, lina)}, with packing too "
            f"{_ratio(steps[_PACKING_ALONE.name], lina)}; without packing {_ratio(baseline, pipelined)} "
            f"(all-to-all, step)"
        )
    speedup, step_speedup = _speedups(baseline, lina)
    return (
        Measurement(
            "all_to_all_speedup",
            speedup,
            f"all-to-alls of the backward pass, medians {baseline.all_to_all_backward_s:.2f} s unscheduled "
            f"and {lina.all_to_all_backward_s:.2f} s{between}; {where}",
            rounds,
        ),
        Measurement(
            "step_speedup",
            step_speedup,
            f"medians {baseline.step_s:.2f} s unscheduled and {lina.step_s:.2f} s{between}; {where}",
            rounds,
        ),
        Measurement(
            "partition_overhead_pct",
            100 * (cut_s - whole_s) / lina.step_s,
            f"a step's gradients averaged with nothing beside, at the least {whole_s:.3f} s whole and "
            f"{cut_s:.3f} s in micro-ops ({100 * (cut_s / whole_s - 1):+.1f} %), over a step; "
            f"{where}; the thesis: 1.02",
            rounds,
        ),
        Measurement(
            "allreduce_slowdown_pct",
            100 * (lina.allreduce_s / baseline.allreduce_s - 1),
            f"running times of a step's allreduces added up, with those of packed experts; from the first "
            f"gradients to the last average {span_pct:+.1f} %; {where}; the thesis: 1.7",
            rounds,
        ),
    )


def _speedups(slow: StepTimes, fast: StepTimes) -> tuple[float, float]:
    return slow.all_to_all_backward_s / fast.all_to_all_backward_s, slow.step_s / fast.step_s


def _ratio(slow: StepTimes, fast: StepTimes) -> str:
    all_to_all, step = _speedups(slow, fast)
    return f"{all_to_all:.2f} and {step:.2f}"


def _described(shape: ModelShape) -> str:
    return (
        f"{shape.layers} layers of {shape.experts} experts, {shape.exchanged_bytes / 2**20:g} MiB of tokens "
        f"a rank and {shape.dense_bytes / 2**20:g} MiB of gradients in each"
    )
