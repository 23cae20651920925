"""Measured training steps, by variant."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.moe.limited_network import run_on_limited_network
from bench.moe.training_rank import measure_training
from bench.moe.training_shape import Shape, Variant
from bench.moe.training_steps import StepTimes, medians, read_steps


@dataclass(frozen=True)
class TrainingRun:
    """What a run has measured.

    Attributes:
        steps: medians of each variant's, by name.
        averages_s: for each partition size, how long averaging a step's dense gradients takes at least, with
            nothing beside; of the rank that takes longest.
        network: where, in words.
    """

    steps: dict[str, StepTimes]
    averages_s: list[float]
    network: str


def run_training(
    shape: Shape,
    world: int,
    variants: Sequence[Variant],
    rounds: int,
    seed: int,
    partitions_bytes: Sequence[int] = (),
) -> TrainingRun:
    """Measure steps of variants, which take turns, and averages by each partition size, which do too."""
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
