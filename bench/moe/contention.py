"""The part `contention`: what an all-to-all loses beside an allreduce (Figure 4.4), and its share of a step
as experts and layers grow (Figure 4.3, Table 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bench.charts import Bars
from bench.figures import Conditions, Measurement, Result, Table
from bench.moe.contention_rank import measure_contention
from bench.moe.limited_network import run_on_limited_network
from bench.moe.model_of_training import costs_of, modelled_step
from bench.moe.training_runs import run_training
from bench.moe.training_shape import BASELINE, Shape
from bench.moe.training_steps import StepTimes

_SIZES_BYTES = (2**20, 2**21, 2**22)
_PUBLISHED_SHARE_PCT = {2: 33.4, 16: 44.5}
"""Figure 4.3, whose text gives the ends."""
_PUBLISHED_TABLE_4_1 = (
    (4, 12, 259, 36.7, 73, 27.4),
    (4, 24, 589, 35.4, 103, 26.2),
    (4, 36, 979, 38.2, 153, 28.3),
    (16, 12, 333, 39.5, 102, 32.5),
    (16, 24, 715, 37.6, 177, 31.7),
    (16, 36, 1145, 36.8, 243, 27.4),
)
_LAYERS = (1, 2, 3)
"""Measured, where the thesis has 12, 24 and 36."""


@dataclass(frozen=True)
class Contention:
    """All-to-alls of one size, each as long as it took the last rank.

    Attributes:
        alone_s: the median of those alone.
        slowdowns: of each that ran beside an allreduce.
        network: where, in words.
    """

    alone_s: float
    slowdowns: Sequence[float]
    network: str


def sample_contention(world: int, size_bytes: int, samples: int, seed: int) -> Contention:
    """Measure all-to-alls alone and beside an allreduce, in turns."""
    results, network = run_on_limited_network(
        measure_contention, world, size_bytes=size_bytes, samples=samples, seed=seed
    )
    alone_s = median(_last(results, "alone_s"))
    return Contention(alone_s, [each_s / alone_s for each_s in _last(results, "beside_s")], network)


def measure_contention_part(conditions: Conditions) -> Result:
    """What an all-to-all loses beside an allreduce; in full, also its share of a step."""
    sizes, samples = ((2**20,), 10) if conditions.quick else (_SIZES_BYTES, 20)
    sampled = {size: sample_contention(4, size, samples, conditions.seed) for size in sizes}
    slowdowns = [factor for each in sampled.values() for factor in each.slowdowns]
    figure = Measurement(
        "contention_slowdown",
        median(slowdowns),
        f"median of all-to-alls of {_named(sizes)} a rank beside one allreduce, over the median alone; "
        f"mean {fmean(slowdowns):.2f}, {min(slowdowns):.2f} to {max(slowdowns):.2f}; "
        f"{sampled[sizes[0]].network}; the thesis: median 1.83, worst 4.14",
        len(slowdowns),
    )
    rows = [(f"{size / 2**20:g} MiB", factor) for size, each in sampled.items() for factor in each.slowdowns]
    tables = [Table("figure_4_4", ("all_to_all", "slowdown"), rows)]
    if not conditions.quick:
        tables += _share_tables(conditions.seed, median(slowdowns))
    return Result((figure,), tuple(tables))


def _share_shape(experts: int, layers: int) -> Shape:
    """A step whose all-to-alls take about the share of the thesis's."""
    return Shape(experts, layers, hidden=512, dense=1024, inner=512, tokens=512, bucket_bytes=4 * 2**20)


def _share_tables(seed: int, slowdown: float) -> list[Table]:
    measured = {(world, layers): _baseline(world, layers, seed) for world in (2, 4) for layers in _LAYERS}
    middle = _LAYERS[1]
    costs = costs_of(_share_shape(4, middle), 4, measured[4, middle], slowdown, micro_op_s=0.001)
    modelled = {
        (world, layers): modelled_step(costs, world, layers, BASELINE)
        for world in (2, 4, 8, 16)
        for layers in _LAYERS
    }
    figure_rows: list[tuple[Any, ...]] = [
        (str(experts), source, 100 * times.all_to_all_s / times.step_s)
        for source, steps in (("measured", measured), ("model", modelled))
        for (experts, layers), times in steps.items()
        if layers == middle
    ]
    figure_rows += [(str(experts), "thesis", share) for experts, share in _PUBLISHED_SHARE_PCT.items()]
    figure_chart = Bars("experts", "source", "all_to_all_pct", None, "all-to-all, % of the step")
    figure = Table("figure_4_3", ("experts", "source", "all_to_all_pct"), figure_rows, figure_chart)
    columns = (
        "layers",
        "experts",
        "training_all_to_all_ms",
        "training_pct",
        "inference_all_to_all_ms",
        "inference_pct",
    )
    table_rows: list[tuple[Any, ...]] = [
        _table_row(layers, f"{experts}, measured", times) for (experts, layers), times in measured.items()
    ]
    table_rows += [
        _table_row(layers, f"{experts}, model", times)
        for (experts, layers), times in modelled.items()
        if experts > 4
    ]
    table_rows += [
        (str(layers), f"{experts}, thesis", *published)
        for experts, layers, *published in _PUBLISHED_TABLE_4_1
    ]
    table_chart = Bars("layers", "experts", "training_pct", None, "all-to-all, % of a training step")
    return [figure, Table("table_4_1", columns, table_rows, table_chart)]


def _table_row(layers: int, experts: str, times: StepTimes) -> tuple[Any, ...]:
    return (
        str(layers),
        experts,
        1e3 * times.all_to_all_s,
        100 * times.all_to_all_s / times.step_s,
        1e3 * times.all_to_all_forward_s,
        100 * times.all_to_all_forward_s / times.forward_s,
    )


def _baseline(world: int, layers: int, seed: int) -> StepTimes:
    run = run_training(_share_shape(world, layers), world, [BASELINE], rounds=3, seed=seed)
    return run.steps[BASELINE.name]


def _last(results: Sequence[dict[str, Any]], field: str) -> list[float]:
    return [max(times_s) for times_s in zip(*(result[field] for result in results), strict=True)]


def _named(sizes_bytes: Sequence[int]) -> str:
    return ", ".join(f"{size / 2**20:g}" for size in sizes_bytes) + " MiB"
