"""Events that set many jobs back at once: the loss of a node, and the first tick after a pause.

The jobs are of the kind whose plans take the longest search.
"""

import random

from bench.figures import Measurement, Result
from bench.spine.cells import CELL, SLOT_S
from bench.spine.slow_bids import DEAR_MICROS, Market, MarketShape, TaskShape
from schemas.clock import ClockTicked
from schemas.fleet import NodeSilent

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
