"""The settings of section 5.1 of the auction's paper, and the workloads drawn from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import get_args

from bench.workloads.arrivals import JobsBefore, SlotArrival, TraceArrivals, by_working_hours, poisson
from bench.workloads.cell import CELL, SLOT_S, ZONE, Gpus, PolicyBounds, configuration, types_of_nodes
from bench.workloads.tasks import PaperTask, ValueDensity, draw_tasks, mean_work_samples
from bench.workloads.throughput import (
    SEQUENCE_LENGTH,
    TARGET_MODULES,
    node_samples_per_s,
    task_memory_gib,
    task_samples_per_s,
)
from bench.workloads.vendors import UNIT_MICROS, draw_quotes, shortest_delay_s
from infra.workloads.auction.bids import AuctionWorkload
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import BidTerms, Task, VendorQuoted
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from solvers.auction.market.fleet import Calendar

# A rule is a function of a uniform draw from 0 to 1, the slots of work on the fastest type, and the remaining
# slots of the day; it returns slots.


def proportional(draw: float, work_slots: float, _left_slots: int) -> float:
    """Draw uniformly from 1.2 to 5 times the work: longer tasks have longer deadlines."""
    return work_slots * _between(1.2, 5.0, draw)


def tight(draw: float, work_slots: float, _left_slots: int) -> float:
    """Draw uniformly from 1.05 to 2 times the work: an A40, 2.08 times as slow, is too slow for nearly
    all."""
    return work_slots * _between(1.05, 2.0, draw)


def loose(draw: float, work_slots: float, _left_slots: int) -> float:
    """Draw uniformly from 3 to 8 times the work: either type is fast enough, and a task can wait for the
    night's tariff."""
    return work_slots * _between(3.0, 8.0, draw)


def day(draw: float, work_slots: float, left_slots: int) -> float:
    """Draw uniformly from the work to the end of the day: small tasks can wait longest."""
    return _between(work_slots, max(work_slots, float(left_slots)), draw)


DEADLINE_RULES = MappingProxyType({"proportional": proportional, "tight": tight, "loose": loose, "day": day})


def _between(least: float, most: float, draw: float) -> float:
    return least + (most - least) * draw


LEAST_VENDORS = 2
"""Vendors whose delays the deadlines allow for: they are in every market, so a larger one changes no
deadline."""

MOST_ARRIVALS_PER_SLOT = 10_000
MOST_WORK_SCALE = 1_000.0


@dataclass(frozen=True)
class PaperSetting:
    """One point of the evaluation."""

    nodes: int = 100
    gpus: Gpus = "mixed"
    slots: int = 144
    """Slots of the day, 600 s each. Tasks arrive in all of them and no deadline is after the last: a task
    whose work no longer fits is rejected like any other, as in a system that operates for one day."""
    arrivals_per_slot: float = 50.0
    """Mean of a Poisson distribution; all arrive at the beginning of the slot."""
    trace: TraceArrivals | JobsBefore | None = None
    """Real arrivals in place of drawn ones."""
    night_part: float = 1.0
    """Drawn arrivals per slot outside working hours, as a part of those within; the mean of the day is the
    same."""
    vendors: int = 5
    deadlines: str = "proportional"
    """Name in `DEADLINE_RULES`."""
    work_scale: float = 1.0
    """Factor on the sizes of the data, and so on all work: days shorter than 144 slots need less work."""
    density: ValueDensity = field(default_factory=ValueDensity)
    bounds: PolicyBounds = field(default_factory=PolicyBounds)

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            ValueError: a field is invalid; the message has its name and its range.
        """
        for name, least in (("nodes", 1), ("slots", 2), ("vendors", LEAST_VENDORS)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, at least {least} is needed")
        for name, most in (("arrivals_per_slot", MOST_ARRIVALS_PER_SLOT), ("work_scale", MOST_WORK_SCALE)):
            if not 0 < getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}, more than 0 and at most {most} is needed")
        if not 0 < self.night_part <= 1:
            raise ValueError(f"night_part is {self.night_part}, more than 0 and at most 1 is needed")
        if self.deadlines not in DEADLINE_RULES:
            raise ValueError(f"deadlines is {self.deadlines!r}, known are {', '.join(DEADLINE_RULES)}")
        if self.gpus not in get_args(Gpus):
            raise ValueError(f"gpus is {self.gpus!r}, known are {', '.join(get_args(Gpus))}")


def arrivals_for_load(load: float, nodes: int, gpus: Gpus, work_scale: float) -> float:
    """Return the arrivals per slot whose mean demand is a multiple (`load`) of the samples that a fleet can
    train.

    A node-slot of a type does its full step's samples for any tasks, so samples and node-slots of compute are
    equivalent.
    """
    per_slot = SLOT_S * math.fsum(map(node_samples_per_s, types_of_nodes(gpus, nodes)))
    return load * per_slot / mean_work_samples(work_scale)


def draw(setting: PaperSetting, seed: int) -> tuple[CellConfigured, AuctionWorkload]:
    """Draw the cell of a setting and its workload; equal seeds yield equal bytes.

    Raises:
        TraceError: the trace of the setting cannot be read, or is too short.
    """
    cell = configuration(
        setting.nodes, setting.gpus, setting.slots, setting.vendors, setting.density, setting.bounds
    )
    quotes = draw_quotes(CELL, setting.vendors, seed)
    if setting.trace is None:
        arrivals = poisson(setting.arrivals_per_slot, setting.slots, seed)
        arrivals = by_working_hours(arrivals, setting.slots, SLOT_S, setting.night_part)
    else:
        arrivals = setting.trace.draw(setting.slots, SLOT_S, seed)
    tasks = islice(draw_tasks(seed, setting.work_scale), len(arrivals))
    types = tuple(gpu.name for gpu in cell.zones[0].gpu_types)
    bids = [
        _bid(setting, index, arrival, task, quotes[:LEAST_VENDORS], types)
        for index, (arrival, task) in enumerate(zip(arrivals, tasks, strict=True))
    ]
    return cell, AuctionWorkload(quotes, bids)


def _bid(
    setting: PaperSetting,
    index: int,
    arrival: SlotArrival,
    drawn: PaperTask,
    allowed_vendors: list[VendorQuoted],
    gpu_types: tuple[str, ...],
) -> TimedEvent[JobSubmitted]:
    calendar = Calendar(0.0, SLOT_S)
    shape = drawn.shape
    # A plan starts with the slot after the arrival, and a vendor's delay counts in whole slots.
    first_slot = arrival.slot + 1
    if drawn.needs_preprocessing:
        first_slot += math.ceil(shortest_delay_s(allowed_vendors, drawn.dataset_samples) / SLOT_S)
    work_slots = drawn.work_slots(SLOT_S)
    rule = DEADLINE_RULES[setting.deadlines]
    span_slots = rule(drawn.haste, work_slots, setting.slots - first_slot)
    end_slot = min(first_slot + math.ceil(span_slots), setting.slots)
    value_units = drawn.value_units(setting.density, span_slots / work_slots, SLOT_S)
    bid = JobSubmitted(
        cell=CELL,
        job_id=f"task-{index:05d}",
        user=arrival.user,
        zone=ZONE,
        terms=BidTerms(bid_micros=round(value_units * UNIT_MICROS), deadline_s=calendar.start_s(end_slot)),
        workload=LoraWorkload(
            work_samples=drawn.work_samples,
            dataset=Dataset(path=f"drawn/{index:05d}.jsonl", samples=drawn.dataset_samples),
            hyperparameters=LoraHyperparameters(
                rank=shape.rank,
                alpha=2.0 * shape.rank,
                target_modules=TARGET_MODULES,
                batch_size=shape.batch_size,
                sequence_length=SEQUENCE_LENGTH,
            ),
            memory_gib=task_memory_gib(shape),
            speed_samples_per_s={name: task_samples_per_s(name, shape) for name in gpu_types},
            needs_preprocessing=drawn.needs_preprocessing,
        ),
    )
    return TimedEvent(calendar.start_s(arrival.slot), bid)


DAY_S = 86_400.0

SeededSetting = tuple[PaperSetting, int]
"""Setting and seed of a day."""


@dataclass(frozen=True)
class ConsecutiveDays:
    """Inputs of a cell on a day and on the days before it."""

    cell: CellConfigured
    """Cell of the last day."""
    inputs: list[TimedEvent[Event]]
    earlier_job_ids: frozenset[str]
    """Ids of the jobs of all days but the last."""


def draw_days(earlier: Sequence[SeededSetting], day: SeededSetting) -> ConsecutiveDays:
    """Draw a day, and others before it, all with equal numbers of slots.

    Each day has the quotes and bids that it has alone, moved by whole calendar days, so that every hour has
    its tariff. Its quotes are of the same vendors, and replace those of the day before. No deadline of a day
    is after its last slot, so no work is left when the next begins. Jobs of the day before the last have ids
    that begin with `before-`, those of the one before that with `before-2-`, and so on; ids of the last day
    are unchanged.

    Raises:
        TraceError: a trace cannot be read, or is too short.
    """
    cell, last = draw(*day)
    day_s = DAY_S * math.ceil(day[0].slots * cell.slot_s / DAY_S)
    inputs: list[TimedEvent[Event]] = []
    job_ids = set()
    for number, before in enumerate(earlier):
        to_last = len(earlier) - number
        name = "before" if to_last == 1 else f"before-{to_last}"
        _, workload = draw(*before)
        inputs += (TimedEvent(cell.epoch_s + number * day_s, quote) for quote in workload.quotes)
        jobs = [_moved(timed, f"{name}-{timed.event.job_id}", number * day_s) for timed in workload.jobs]
        inputs += jobs
        job_ids |= {timed.event.job_id for timed in jobs}
    later_s = len(earlier) * day_s
    inputs += (TimedEvent(cell.epoch_s + later_s, quote) for quote in last.quotes)
    inputs += (_moved(timed, timed.event.job_id, later_s) for timed in last.jobs)
    return ConsecutiveDays(cell, inputs, frozenset(job_ids))


def _moved(timed: TimedEvent[JobSubmitted], job_id: str, later_s: float) -> TimedEvent[JobSubmitted]:
    """Return a bid with another id, moved in time with its deadline."""
    bid = timed.event
    terms = bid.terms.model_copy(update={"deadline_s": Task.of(bid).deadline_s + later_s})
    return TimedEvent(timed.time_s + later_s, bid.model_copy(update={"job_id": job_id, "terms": terms}))
