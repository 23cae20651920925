"""Times without a broker: of the decision on a bid by size of the market, of an event that sets back many
jobs, and of reading the record of a bid."""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from bench.figures import Measurement, Result, Table, slope
from bench.spine.calibration import Calibration, calibrated
from bench.spine.cells import CELL, DECLARED, SLOT_S, SLOTS, FilledCell, bid, filled
from bench.spine.slow_bids import DEAR_MICROS, MarketCell, MarketShape, TaskShape
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.fleet import NodeSilent
from schemas.jobs import JobSubmitted
from schemas.registry import EVENTS_BY_TOPIC
from schemas.topics import JOBS, LEDGER
from streams.cell.ledger import ledger_event_of
from streams.kafka.records import ReadRecord
from streams.worker.garbage import tune_gc
from streams.worker.intake import Accepted, Intake, IntakeTopic

SIZES = (100, 200, 400, 1_000)
QUICK_SIZES = (25, 50, 100)
DECISIONS = 3_000
QUICK_DECISIONS = 300
ROUNDS = 10
_FULL_SIZE = 100
_FILLED, _QUICK_FILLED = 0.5, 0.2
_SAMPLES = 5
"""Runs of the calibration, in each round and size."""


@dataclass
class _Times:
    """Times of the decisions of one cell."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of the thread."""


def measure_decide(quick: bool, seed: int) -> Result:
    """Measure median and 99th percentile at 100 nodes x 144 slots, and the growth of the median with nodes x
    slots.

    The sizes, a cell under declared bounds and the calibration alternate, so that a drift of the machine's
    speed affects all of them.
    """
    sizes = QUICK_SIZES if quick else SIZES
    decisions = QUICK_DECISIONS if quick else DECISIONS
    share = _QUICK_FILLED if quick else _FILLED
    cells: dict[int | str, tuple[FilledCell, random.Random]] = {n: filled(n, seed, share) for n in sizes}
    # It gets the same bids as the undeclared cell.
    cells["declared"] = filled(_FULL_SIZE, seed, 1.0, DECLARED, cells[_FULL_SIZE][0].bids)
    times = {name: _Times() for name in cells}
    calibration = Calibration()
    numbers = count()
    for _ in range(ROUNDS):
        for name, (filled_cell, rng) in cells.items():
            calibration.sample(_SAMPLES)
            for _ in range(decisions // ROUNDS):
                _time_one(filled_cell, bid(rng, f"timed{next(numbers)}", now_s=0.0), times[name])
    return Result(
        _measurements(cells, times, calibration, sizes),
        (
            Table(
                "decide",
                [
                    {"nodes": nodes, "slots": SLOTS, "decision_ms": duration_s * 1_000}
                    for nodes in sizes
                    for duration_s in times[nodes].wall_s
                ],
            ),
        ),
    )


def _measurements(
    cells: Mapping[int | str, tuple[FilledCell, random.Random]],
    times: Mapping[int | str, _Times],
    calibration: Calibration,
    sizes: Sequence[int],
) -> tuple[Measurement, ...]:
    main = times[_FULL_SIZE]
    runs = len(main.cpu_s)
    medians_s = {name: float(np.median(each.cpu_s)) for name, each in times.items()}
    exponent = slope([nodes * SLOTS for nodes in sizes], [medians_s[nodes] for nodes in sizes])
    setting = (
        f"{_FULL_SIZE} nodes x {SLOTS} slots, two GPU types, five vendors, "
        f"{cells[_FULL_SIZE][0].used_share():.0%} of the compute taken, {runs} bids, one thread"
    )
    by_size = ", ".join(
        f"{n}: {medians_s[n] * 1_000:.2f} ms ({cells[n][0].used_share():.0%} taken)" for n in sizes
    )
    declared = (
        f"CPU time of the median bid, {medians_s[_FULL_SIZE] * 1_000:.2f} ms, over that of a cell whose bids "
        f"have declared bounds, {medians_s['declared'] * 1_000:.2f} ms "
        f"({cells['declared'][0].used_share():.0%} taken), in turn; {setting}"
    )
    p99_s, p99_cpu_s = (float(np.percentile(each, 99)) for each in (main.wall_s, main.cpu_s))
    return (
        Measurement("decide_median_ms", 1_000 * float(np.median(main.wall_s)), setting, runs),
        Measurement("decide_p99_ms", 1_000 * p99_s, setting, runs),
        Measurement(
            "decide_median_units",
            medians_s[_FULL_SIZE] / calibration.cpu_s,
            f"{calibration.note()}; {setting}",
            runs,
        ),
        Measurement(
            "decide_p99_units", p99_cpu_s / calibration.cpu_s, f"{calibration.note()}; {setting}", runs
        ),
        Measurement(
            "decide_over_declared_ratio", medians_s[_FULL_SIZE] / medians_s["declared"], declared, runs
        ),
        Measurement("decide_growth_exponent", exponent, f"median by nodes at {SLOTS} slots: {by_size}"),
    )


def _time_one(filled_cell: FilledCell, event: JobSubmitted, times: _Times) -> None:
    entry = filled_cell.envelope(event)
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    filled_cell.cell.handle(entry)
    times.cpu_s.append(time.thread_time() - cpu_s)
    times.wall_s.append(time.perf_counter() - wall_s)


SETBACK_JOBS = 1_000
QUICK_SETBACK_JOBS = 100
_PAUSE_SLOTS = 300


def measure_setbacks(quick: bool, seed: int) -> Result:
    """Measure the time that a cell needs for the loss of a node, and for a tick after a pause, with many jobs
    that are hard to plan."""
    jobs = QUICK_SETBACK_JOBS if quick else SETBACK_JOBS
    shape = MarketShape(gpu_types=4, tariffs=1, nodes=20, slots=1_008, bids_before=0, seed=seed)
    market = MarketCell(shape)
    rng = random.Random(f"setbacks/{seed}")
    for number in range(jobs):
        market.times_of(f"job{number}", _hard_task(rng, shape), DEAR_MICROS)
    note = f"{market.live_jobs} of {jobs} jobs admitted, {shape.text}"
    # As in a worker: a collection of all objects takes as long as the event.
    tune_gc()
    calibration = calibrated()
    loss = market.times(NodeSilent(cell=CELL, node="node0000", silent_s=100.0))
    gap = market.times(ClockTicked(cell=CELL, time_s=_PAUSE_SLOTS * SLOT_S))
    calibration.sample(50)
    return Result(
        tuple(
            measurement
            for name, event_time, setting in (
                ("node_loss", loss, note),
                ("clock_gap", gap, f"{_PAUSE_SLOTS} slots later, {note}"),
            )
            for measurement in (
                Measurement(f"{name}_ms", 1_000 * event_time.wall_s, setting, jobs),
                Measurement(
                    f"{name}_units",
                    event_time.cpu_s / calibration.cpu_s,
                    f"{calibration.note()}; {setting}",
                    jobs,
                ),
            )
        )
    )


def _hard_task(rng: random.Random, market: MarketShape) -> TaskShape:
    """Return a task with similar speeds and many more slots than it needs, which leaves most plans
    possible."""
    speeds = tuple(1_219 - rng.randint(0, 120) for _ in range(market.gpu_types))
    return TaskShape(
        speeds=speeds,
        work_samples=int(max(speeds) * rng.uniform(0.06, 0.18) * market.slots),
        slots=market.slots,
        memory_gib=0.5,
        needs_preprocessing=False,
    )


BIDS = 3_000
QUICK_BIDS = 600
_TIMESTAMP_MS = 1_700_000_000_000


def measure_records(quick: bool, seed: int) -> Result:
    """Measure the processor time of a bid in intake and ledger, divided by that of parsing, validating and
    writing it once. Both alternate, bid by bid."""
    rng = random.Random(seed)
    topic = IntakeTopic(EVENTS_BY_TOPIC[JOBS], "dead-letters")
    intake = Intake({JOBS: topic}, LEDGER, frozenset({CELL}), math.inf, partitions=1)
    bids = QUICK_BIDS if quick else BIDS
    path_s, once_s = [], []
    for number in range(bids):
        envelope = Envelope(f"bench-{number}", "bench", "", bid(rng, f"read{number}", now_s=0.0))
        headers = envelope.headers()
        record = ReadRecord(JOBS, 0, number, _TIMESTAMP_MS, CELL.encode(), envelope.value, headers, True)
        began_s = time.thread_time()
        _read(intake, record)
        between_s = time.thread_time()
        JobSubmitted.model_validate_json(envelope.value).model_dump_json()
        path_s.append(between_s - began_s)
        once_s.append(time.thread_time() - between_s)
    path, once = float(np.median(path_s)), float(np.median(once_s))
    note = (
        f"processor time of intake and ledger, {1e6 * path:.0f} us at the median, over that of one "
        f"parse, validation and dump, {1e6 * once:.0f} us; {bids} bids of {len(record.value or b'')} bytes"
    )
    return Result((Measurement("read_over_once_ratio", path / once, note, bids),))


def _read(intake: Intake, record: ReadRecord) -> None:
    """Process a record of an input topic like a worker before its cell handles it."""
    accepted = intake.admit(record)
    assert isinstance(accepted, Accepted)
    sent = accepted.record
    stored = ReadRecord(sent.topic, 0, record.offset, None, sent.key, sent.value, sent.headers)
    assert ledger_event_of(stored, accepted.event).canonical
