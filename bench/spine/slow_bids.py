"""A search for slow bids: markets of up to four classes, and tasks that make their searches long.

The search climbs by counted steps, so that it takes the same path on every machine. The tasks that it finds
are then timed like any bid, by the whole of `Cell.handle`.
"""

import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from bench.figures import Measurement, Result, Table
from bench.spine.calibration import Calibration, calibrated
from bench.spine.cells import CELL, SLOT_S, UNIT
from schemas.auction.bids import BidTerms, Task, VendorQuoted
from schemas.auction.settings import AuctionPolicy, PdftspPolicy
from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import MAX_NODE_SLOTS, CellConfigured, GpuType, Node, Tariff, Zone
from schemas.codec import Envelope
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, LoraWorkload
from solvers.auction.market.demand import UnplannableError
from solvers.auction.market.node_slots import additive_costs
from solvers.auction.mechanism.certificate import CERTIFICATE_BUDGET_STEPS
from solvers.auction.mechanism.pricing import cheapest_plan
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.policies.auction.zone import AuctionZone

ZONE = "z"
FOUR_TARIFFS_BIDS = 3_000
QUICK_FOUR_TARIFFS_BIDS = 300
MARKETS = 20
QUICK_MARKETS = 4
TRIES = 500
"""Tries of the search in each market."""
QUICK_TRIES = 50
_QUICK_BIDS_BEFORE = 300
_TIMED = 10
"""Bids of each market that are timed: those with the most steps."""
_TIMES = 3
"""Repetitions of each timing; the median counts, since a single one depends on the machine."""
DEAR_MICROS = 10**12
"""Bid above any price, so that the certificate's search is not cut off."""
_DECLARED = PdftspPolicy(
    kind="pdftsp",
    money_unit_micros=2 * UNIT,
    max_value_per_compute_micros=UNIT,
    max_value_per_memory_micros=UNIT,
)
_SAMPLES_PER_SLOT = 24_000
"""Samples of a full node."""


def measure_slow_bids(quick: bool, seed: int) -> Result:
    """Measure bids on one GPU type under four tariffs, and the slowest of many from a search for slow
    ones."""
    calibration = calibrated()
    tariffs = _measure_four_tariffs(quick, seed, calibration)
    rng = random.Random(f"slow bids/{seed}")
    tries = QUICK_TRIES if quick else TRIES
    rows: list[_TimedBid] = []
    for number in range(QUICK_MARKETS if quick else MARKETS):
        market = MarketCell(_sized(random_market(rng, seed + number), quick))
        calibration.sample(10)
        sought = sorted(slow_tasks(rng, market, tries), key=lambda found: -found[0])
        for place, (steps, task) in enumerate(sought[:_TIMED]):
            # The first bid has the least competition, since each admitted bid uses room and raises prices.
            times = [market.times_of(f"slow{place}-{again}", task, DEAR_MICROS) for again in range(_TIMES)]
            wall_s, cpu_s = (statistics.median(each) for each in zip(*times, strict=True))
            rows.append(_TimedBid(market.shape.text, steps, 1_000 * wall_s, 1_000 * cpu_s))
    worst = max(rows, key=lambda row: row.decision_cpu_ms)
    sought_bids = tries * (QUICK_MARKETS if quick else MARKETS)
    note = (
        f"of {sought_bids} bids sought by counted steps, {len(rows)} timed: {worst.steps} steps, "
        f"{worst.market}"
    )
    units = worst.decision_cpu_ms / 1_000 / calibration.cpu_s
    return Result(
        (
            *tariffs,
            Measurement("decide_worst_ms", worst.decision_ms, note, sought_bids),
            Measurement("decide_worst_units", units, f"{calibration.note()}; {note}", sought_bids),
        ),
        (Table("slow_bids", [row._asdict() for row in rows]),),
    )


class _TimedBid(NamedTuple):
    market: str
    steps: int
    decision_ms: float
    decision_cpu_ms: float


def _sized(market: "MarketShape", quick: bool) -> "MarketShape":
    """Return the market; in the quick form, with few earlier bids, since thousands take a minute to be
    decided."""
    return replace(market, bids_before=min(market.bids_before, _QUICK_BIDS_BEFORE)) if quick else market


def _measure_four_tariffs(quick: bool, seed: int, calibration: Calibration) -> Iterator[Measurement]:
    bids = QUICK_FOUR_TARIFFS_BIDS if quick else FOUR_TARIFFS_BIDS
    shape = _sized(
        MarketShape(gpu_types=1, tariffs=4, nodes=100, slots=144, bids_before=2_000, seed=seed), quick
    )
    market = MarketCell(shape)
    rng = random.Random(f"four tariffs/{seed}")
    times: list[EventTime] = []
    for number in range(bids):
        if number % 50 == 0:
            calibration.sample(2)
        times.append(market.times_of(f"timed{number}", _usual(rng, shape), _worth_micros(rng)))
    wall_s, cpu_s = (float(np.percentile(each, 99)) for each in zip(*times, strict=True))
    note = f"{shape.text}, one thread"
    yield Measurement("decide_four_tariffs_p99_ms", 1_000 * wall_s, note, bids)
    yield Measurement(
        "decide_four_tariffs_p99_units", cpu_s / calibration.cpu_s, f"{calibration.note()}; {note}", bids
    )


class EventTime(NamedTuple):
    """Time to handle an event."""

    wall_s: float
    cpu_s: float
    """Processor time of the thread."""


@dataclass(frozen=True)
class MarketShape:
    """Conditions of a market."""

    gpu_types: int
    tariffs: int
    nodes: int
    slots: int
    bids_before: int
    seed: int
    vendors: int = 5
    declares_bounds: bool = False
    """Whether it declares bounds of bids; if not, the zone finds its prices itself."""

    @property
    def text(self) -> str:
        """Description in words."""
        return (
            f"{self.nodes} nodes x {self.slots} slots, {self.gpu_types} gpu types x {self.tariffs} tariffs, "
            f"{self.vendors} vendors, {self.bids_before} bids before"
            f"{', bounds declared' if self.declares_bounds else ''}"
        )


@dataclass(frozen=True)
class TaskShape:
    """Demand of a task."""

    speeds: tuple[int, ...]
    """Samples per slot by GPU type."""
    work_samples: int
    slots: int
    """Slots from now to its deadline."""
    memory_gib: float
    needs_preprocessing: bool


def configuration(shape: MarketShape) -> CellConfigured:
    """Return a cell of one zone, with tariffs drawn by hour."""
    rng = random.Random(shape.seed)
    tariffs = tuple(
        Tariff(
            name=f"tariff{number}",
            micros_per_kwh=tuple(int(UNIT * rng.uniform(0.05, 0.3)) for _ in range(HOURS_PER_DAY)),
        )
        for number in range(shape.tariffs)
    )
    full_node_per_s = _SAMPLES_PER_SLOT / SLOT_S
    gpu_types = tuple(
        GpuType(
            name=f"gpu{number}",
            samples_per_s=full_node_per_s * rng.choice((1.0, 1.0, 0.8, 0.4)),
            memory_gib=rng.choice((48.0, 80.0)),
            power_kw=rng.choice((0.3, 0.4, 0.4)),
        )
        for number in range(shape.gpu_types)
    )
    classes = [(gpu.name, tariff.name) for gpu in gpu_types for tariff in tariffs][:4]
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=SLOT_S,
        tariffs=tariffs,
        zones=(
            Zone(
                id=ZONE,
                base_model="gpt2",
                base_model_memory_gib=2.0,
                horizon_slots=shape.slots,
                gpu_types=gpu_types,
                nodes=tuple(
                    Node(
                        id=f"node{number:04d}",
                        gpu_type=classes[number % len(classes)][0],
                        tariff=classes[number % len(classes)][1],
                    )
                    for number in range(shape.nodes)
                ),
                policy=_DECLARED if shape.declares_bounds else AuctionPolicy(),
            ),
        ),
        vendors=tuple(f"vendor{number}" for number in range(shape.vendors)),
    )


def random_market(rng: random.Random, seed: int) -> MarketShape:
    """Draw a market that a cell may have, often a large one."""
    gpu_types = rng.randint(1, 4)
    slots = rng.choice((144, 144, 504, 1_008, 10_000))
    return MarketShape(
        gpu_types=gpu_types,
        tariffs=max(1, 4 // gpu_types) if rng.random() < 0.7 else 1,
        nodes=min(rng.choice((20, 100, 400, 1_000)), MAX_NODE_SLOTS // slots),
        slots=slots,
        # More bids in a long horizon take minutes.
        bids_before=rng.choice((0, 500, 2_000, 8_000) if slots < 10_000 else (0, 500)),
        seed=seed,
        vendors=rng.choice((5, 5, 100, 1_000)),
        declares_bounds=rng.random() < 0.5,
    )


def random_task(rng: random.Random, market: MarketShape) -> TaskShape:
    """Draw a task, often with similar speeds."""
    fastest = rng.choice((3, 17, 101, 1_009, 1_219, 2_400, rng.randint(2, 4_000)))
    kind = rng.random()
    if kind < 0.3:
        speeds = [fastest] * market.gpu_types
    elif kind < 0.7:
        speeds = [max(1, fastest - rng.randint(0, max(1, fastest // 10))) for _ in range(market.gpu_types)]
    else:
        speeds = [rng.randint(1, fastest) for _ in range(market.gpu_types)]
    slots = rng.choice((market.slots, rng.randint(1, market.slots)))
    busy = rng.uniform(0.02, 0.98) * slots
    return TaskShape(
        speeds=tuple(speeds),
        work_samples=max(1, int(max(speeds) * busy)),
        slots=slots,
        memory_gib=rng.choice((0.5, 2.0, 4.0, 8.0, 20.0)),
        needs_preprocessing=rng.random() < 0.3,
    )


def changed(rng: random.Random, task: TaskShape, market: MarketShape) -> TaskShape:
    """Return a neighbour of a task."""
    what = rng.randrange(5)
    if what == 0:
        at = rng.randrange(len(task.speeds))
        speed = max(1, task.speeds[at] + rng.choice((-100, -10, -1, 1, 10, 100)))
        return replace(task, speeds=(*task.speeds[:at], speed, *task.speeds[at + 1 :]))
    if what == 1:
        return replace(task, work_samples=max(1, int(task.work_samples * rng.uniform(0.8, 1.25))))
    if what == 2:
        return replace(task, slots=min(market.slots, max(1, int(task.slots * rng.uniform(0.7, 1.4)) + 1)))
    if what == 3:
        return replace(task, needs_preprocessing=not task.needs_preprocessing)
    return replace(task, memory_gib=rng.choice((0.5, 1.0, 2.0, 4.0, 8.0, 20.0)))


def bid_for(job_id: str, task: TaskShape, bid_micros: int) -> JobSubmitted:
    return JobSubmitted(
        cell=CELL,
        job_id=job_id,
        user="user",
        zone=ZONE,
        terms=BidTerms(bid_micros=bid_micros, deadline_s=SLOT_S * (task.slots + 1)),
        workload=LoraWorkload(
            work_samples=task.work_samples,
            dataset=Dataset(path="data.jsonl", samples=10_000),
            memory_gib=task.memory_gib,
            # Half a sample more, so that the product with the slot's length rounds down to the speed.
            speed_samples_per_s={
                f"gpu{number}": (speed + 0.5) / SLOT_S for number, speed in enumerate(task.speeds)
            },
            needs_preprocessing=task.needs_preprocessing,
        ),
    )


class MarketCell:
    """A cell that has decided some bids, and the cost of further tasks in it."""

    def __init__(self, shape: MarketShape) -> None:
        self.shape = shape
        self._cell = Cell(CELL)
        self._offset = 0
        self.times(configuration(shape))
        rng = random.Random(shape.seed)
        for number in range(shape.vendors):
            self.times(_vendor(rng, number, shape))
        for number in range(shape.bids_before):
            self.times(bid_for(f"before{number}", _usual(rng, shape), _worth_micros(rng)))

    @property
    def live_jobs(self) -> int:
        """Number of admitted jobs that are not over."""
        return len(self._cell.jobs.live)

    def steps(self, task: TaskShape) -> int:
        """Return the steps of the searches for the task's plan and for its part of the certificate; posted
        prices have their certificate without a search."""
        zone = cast(AuctionZone, self._cell.zones[ZONE])
        sought = Task.of(bid_for("sought", task, 0))
        try:
            request = zone.request("sought", sought)
        except UnplannableError:
            return 0
        appraisal = zone.auctioneer.appraise(request)
        window, demand = appraisal.window, request.demand
        if window is None:
            return 0
        planned_steps = appraisal.schedule.search_steps if appraisal.schedule else 0
        if not self.shape.declares_bounds:
            return planned_steps
        node_slots = zone.auctioneer.market.node_slots(window.columns.start, window.columns.stop)
        cheapest = cheapest_plan(
            additive_costs(node_slots, demand, window.operational),
            demand.samples,
            demand.work_samples,
            window.delays_slots,
            window.prices_micros,
            float(DEAR_MICROS),
            CERTIFICATE_BUDGET_STEPS,
        )
        return cheapest.steps + planned_steps

    def times_of(self, job_id: str, task: TaskShape, bid_micros: int) -> EventTime:
        """Measure the time of the cell to handle a bid for the task."""
        return self.times(bid_for(job_id, task, bid_micros))

    def times(self, event: Event) -> EventTime:
        """Measure the time of the cell to handle an event."""
        entry = LedgerEvent(self._offset, Envelope(f"event-{self._offset}", "bench", "", event))
        self._offset += 1
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        self._cell.handle(entry)
        cpu_s = time.thread_time() - cpu_s
        return EventTime(time.perf_counter() - wall_s, cpu_s)


def _usual(rng: random.Random, market: MarketShape) -> TaskShape:
    """Draw a typical task."""
    share = rng.choice((0.06, 0.1, 0.15, 0.2))
    fastest = int(share * _SAMPLES_PER_SLOT * 0.4)
    busy = rng.uniform(2, market.slots / 4)
    return TaskShape(
        speeds=tuple(max(1, int(fastest * rng.uniform(0.6, 1.0))) for _ in range(market.gpu_types)),
        work_samples=int(fastest * busy) + 1,
        slots=min(market.slots, int(busy * rng.uniform(1.2, 5.0)) + 3),
        memory_gib=rng.choice((2.0, 4.0, 8.0, 12.0)),
        needs_preprocessing=rng.random() < 0.5,
    )


def _worth_micros(rng: random.Random) -> int:
    return int(UNIT * rng.uniform(1, 400))


def _vendor(rng: random.Random, number: int, market: MarketShape) -> VendorQuoted:
    """Draw a vendor; later ones are cheaper and slower, so that none is worse than another in both."""
    part = number / market.vendors
    return VendorQuoted(
        cell=CELL,
        vendor=f"vendor{number}",
        fixed_price_micros=int(UNIT * (0.1 + 0.5 * (1 - part) * rng.uniform(0.99, 1.0))),
        price_per_thousand_samples_micros=UNIT // 100,
        fixed_delay_s=SLOT_S * max(10, market.slots // 2) * part,
        delay_per_thousand_samples_s=30.0,
    )


def slow_tasks(rng: random.Random, market: MarketCell, tries: int) -> Iterator[tuple[int, TaskShape]]:
    """Yield tasks and the steps of their searches. Each task is random, or a neighbour of the slowest task so
    far."""
    best, at = -1, random_task(rng, market.shape)
    for number in range(tries):
        restart = number % 50 < 15
        task = random_task(rng, market.shape) if restart else changed(rng, at, market.shape)
        steps = market.steps(task)
        yield steps, task
        if number % 50 == 0 or steps > best:
            best, at = steps, task
