"""The cost of one decision, cell included: by size, and when one event sets many jobs back."""

import math
import random
import time
from itertools import count

import numpy as np

from bench.figures import Measurement, Result, Table
from bench.spine.cells import CELL, SLOT_S, SLOTS, Fed, bid, half_full
from bench.spine.slow_bids import DEAR_MICROS, Market, MarketShape, TaskShape
from schemas.clock import ClockTicked
from schemas.fleet import NodeSilent
from schemas.jobs import JobSubmitted

SIZES = (100, 200, 400, 1_000)
QUICK_SIZES = (50, 100, 200)
DECISIONS = 3_000
QUICK_DECISIONS = 500
ROUNDS = 10
_FULL_SIZE = 100


def measure_decide(quick: bool, seed: int) -> Result:
    """Median and 99th percentile at 100 nodes x 144 slots, and the growth of the median with nodes x slots.

    The sizes take turns, so that a machine whose speed drifts drifts for all of them.
    """
    sizes = QUICK_SIZES if quick else SIZES
    decisions = QUICK_DECISIONS if quick else DECISIONS
    cells = {nodes: half_full(nodes, seed) for nodes in sizes}
    times_s: dict[int, list[float]] = {nodes: [] for nodes in sizes}
    numbers = count()
    for _ in range(ROUNDS):
        for nodes, (fed, rng) in cells.items():
            for _ in range(decisions // ROUNDS):
                times_s[nodes].append(_time_one(fed, bid(rng, f"timed{next(numbers)}", now_s=0.0)))
    main = np.array(times_s[_FULL_SIZE]) * 1_000
    medians = [float(np.median(times_s[nodes])) for nodes in sizes]
    exponent = _slope([math.log(nodes * SLOTS) for nodes in sizes], [math.log(m) for m in medians])
    setting = (
        f"{_FULL_SIZE} nodes x {SLOTS} slots, two GPU types, five vendors, "
        f"{cells[_FULL_SIZE][0].used_share():.0%} of the compute taken, {main.size} bids, one thread"
    )
    by_size = ", ".join(
        f"{n}: {m * 1_000:.2f} ms ({cells[n][0].used_share():.0%} taken)"
        for n, m in zip(sizes, medians, strict=True)
    )
    rows = [(nodes, SLOTS, took_s * 1_000) for nodes in sizes for took_s in times_s[nodes]]
    return Result(
        (
            Measurement("decide_median_ms", float(np.median(main)), setting, main.size),
            Measurement("decide_p99_ms", float(np.percentile(main, 99)), setting, main.size),
            Measurement("decide_growth_exponent", exponent, f"median by nodes at {SLOTS} slots: {by_size}"),
        ),
        (Table("decide", ("nodes", "slots", "decision_ms"), rows),),
    )


def _time_one(fed: Fed, event: JobSubmitted) -> float:
    entry = fed.envelope(event)
    start = time.perf_counter()
    fed.cell.handle(entry)
    return time.perf_counter() - start


def _slope(x: list[float], y: list[float]) -> float:
    """Least-squares slope of y over x."""
    return float(np.polyfit(x, y, 1)[0])


JOBS = 1_000
QUICK_JOBS = 100
_PAUSE_SLOTS = 300


def measure_setbacks(quick: bool, seed: int) -> Result:
    """What a cell takes for the loss of a node, and for a tick after a pause, with many jobs that are hard to
    plan."""
    jobs = QUICK_JOBS if quick else JOBS
    shape = MarketShape(gpu_types=4, tariffs=1, nodes=20, slots=1_008, bids_before=0, seed=seed)
    market = Market(shape)
    rng = random.Random(f"setbacks/{seed}")
    for number in range(jobs):
        market.time_s(f"job{number}", _hard_task(rng, shape), DEAR_MICROS)
    note = f"{market.live_jobs} of {jobs} jobs admitted, {shape.text}"
    loss_s = market.event_s(NodeSilent(cell=CELL, node="node0000", silent_s=100.0))
    gap_s = market.event_s(ClockTicked(cell=CELL, time_s=_PAUSE_SLOTS * SLOT_S))
    return Result(
        (
            Measurement("node_loss_ms", 1_000 * loss_s, note, jobs),
            Measurement("clock_gap_ms", 1_000 * gap_s, f"{_PAUSE_SLOTS} slots later, {note}", jobs),
        )
    )


def _hard_task(rng: random.Random, market: MarketShape) -> TaskShape:
    """Speeds near each other and many more slots than it needs leave most ways open."""
    speeds = tuple(1_219 - rng.randint(0, 120) for _ in range(market.gpu_types))
    return TaskShape(
        speeds=speeds,
        work_samples=int(max(speeds) * rng.uniform(0.06, 0.18) * market.slots),
        slots=market.slots,
        memory_gib=0.5,
        needs_preprocessing=False,
    )
