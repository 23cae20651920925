"""Costs of the decisions of elastic scheduling, and the distance of reclaims from the optimum."""

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from bench.elastic.random_instances import (
    INFERENCE_GPUS,
    TRAINING_GPUS,
    BusyCell,
    knapsack_groups,
    lent_servers,
)
from bench.figures import Measurement, Result, Table
from solvers.elastic.cluster import Cluster
from solvers.elastic.knapsack import best_choice
from solvers.elastic.lent import Lent, lent_by
from solvers.elastic.reclaiming import least_preemption_cost, random_choice, smallest_count
from streams.worker.garbage import tune_gc

SERVERS = 500
COUNTS = (1, 5, *range(10, 101, 10))
QUICK_COUNTS = (5, 35, 65, 100)
INSTANCES = 10
"""Number of instances, half of them with elastic jobs."""
QUICK_INSTANCES = 2
RANDOM_CHOICES = 3
OPTIMUM_LIMIT_S = 60.0
REPEATS = 5
"""Repetitions of each timed call; the median counts."""
KNAPSACK_GPUS = 245
ROUNDS = 10
QUICK_ROUNDS = 2


def measure_reclaiming(quick: bool, seed: int) -> Result:
    """Measure `reclaim_ms`, and preemptions relative to the optimum and the rivals, for reclaims of 1 to 100
    of 500 servers."""
    # Pyomo takes a second to import.
    from bench.elastic.reclaim_optimum import reclaim_optimum

    counts = QUICK_COUNTS if quick else COUNTS
    instances = QUICK_INSTANCES if quick else INSTANCES
    rows: list[_ReclaimCase] = []
    for number in range(instances):
        cluster = lent_servers(seed * INSTANCES + number, SERVERS, has_elastic=number % 2 == 1)
        on_loan = cluster.servers("loaned")
        lent = lent_by(cluster, on_loan)
        for count in counts:
            chosen = least_preemption_cost(lent, count)
            with _garbage_collection_of_a_worker():
                duration_s = _median_s(partial(_select_servers, cluster, on_loan, count))
            rows.append(
                _ReclaimCase(
                    has_elastic=number % 2 == 1,
                    count=count,
                    ours=len(chosen.preempted),
                    optimum=len(reclaim_optimum(lent, count, OPTIMUM_LIMIT_S).preempted),
                    smallest_count=len(smallest_count(lent, count).preempted),
                    random=_mean_of_random(lent, count, number),
                    damage=chosen.collateral_damage,
                    duration_ms=1_000 * duration_s,
                )
            )
    ours, optimum = sum(row.ours for row in rows), sum(row.optimum for row in rows)
    by_smallest, at_random = sum(row.smallest_count for row in rows), math.fsum(row.random for row in rows)
    few = [row for row in rows if row.count < 60]
    setting = (
        f"{counts[0]} to {counts[-1]} of {SERVERS} servers, {instances} instances, half with elastic jobs"
    )
    preempted = f"{ours} jobs preempted in all, {{}}; {setting}"
    return Result(
        (
            Measurement("reclaim_ms", _mean([row.duration_ms for row in rows]), setting, len(rows)),
            Measurement(
                "reclaim_over_optimum_pct",
                100 * (ours / optimum - 1),
                preempted.format(
                    f"{optimum} by the optimum; below 60 servers {sum(row.ours for row in few)} against "
                    f"{sum(row.optimum for row in few)}"
                ),
                len(rows),
            ),
            Measurement(
                "reclaim_vs_smallest_count",
                by_smallest / ours,
                preempted.format(f"{by_smallest} by the smallest count"),
                len(rows),
            ),
            Measurement(
                "reclaim_vs_random",
                at_random / ours,
                preempted.format(f"{at_random:.0f} at random"),
                len(rows),
            ),
        ),
        (Table("reclaiming", [asdict(row) for row in rows]),),
    )


def _select_servers(cluster: Cluster, on_loan: list[str], count: int) -> None:
    """Select servers to return, as a zone does: from its cluster."""
    least_preemption_cost(lent_by(cluster, on_loan), count)


@dataclass(frozen=True)
class _ReclaimCase:
    has_elastic: bool
    count: int
    ours: int
    optimum: int
    smallest_count: int
    random: float
    damage: float
    duration_ms: float


def _mean_of_random(lent: Lent, count: int, number: int) -> float:
    seeds = range(number * RANDOM_CHOICES, (number + 1) * RANDOM_CHOICES)
    return _mean([len(random_choice(seed)(lent, count).preempted) for seed in seeds])


def measure_allocation(quick: bool, seed: int) -> Result:
    """Measure `allocation_round_ms` with 1,000 running and 500 waiting jobs, and `knapsack_ms` at 354 items
    and 245 GPUs."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    seeds = [seed * ROUNDS + number for number in range(rounds)]
    with _garbage_collection_of_a_worker():
        decided_s = [_round_s(BusyCell(each)) for each in seeds]
    groups = [knapsack_groups(each) for each in seeds]
    setting = (
        f"1,000 running, all elastic, and 500 waiting jobs, {TRAINING_GPUS} training and {INFERENCE_GPUS} "
        f"inference GPUs, {rounds} rounds"
    )
    items = sum(len(group.weights_gpus) for group in groups[0])
    return Result(
        (
            Measurement(
                "allocation_round_ms",
                1_000 * _mean(decided_s),
                f"the workers of each job on each server; {setting}",
                rounds,
            ),
            Measurement(
                "knapsack_ms",
                1_000 * _mean([_median_s(partial(best_choice, each, KNAPSACK_GPUS)) for each in groups]),
                f"{items} items, {KNAPSACK_GPUS} GPUs, {rounds} instances",
                rounds,
            ),
        )
    )


def _round_s(busy: BusyCell) -> float:
    """Return the median time until the zone has decided a round."""
    times_s = []
    for _ in range(REPEATS):
        decide = busy.wake()
        gc.collect()
        start_s = time.perf_counter()
        decide()
        times_s.append(time.perf_counter() - start_s)
    return float(np.median(times_s))


@contextmanager
def _garbage_collection_of_a_worker() -> Iterator[None]:
    """Collect garbage as rarely as the worker does."""
    gc.collect()
    before = gc.get_threshold()
    tune_gc()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def _median_s(call: Callable[[], object]) -> float:
    """Return the median time of a call, after one call for warm-up."""
    call()
    times_s = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - start_s)
    return float(np.median(times_s))


def _mean(values: list[float] | list[int]) -> float:
    return math.fsum(values) / len(values)
