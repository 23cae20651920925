"""The settings of section 5.1 of the auction's paper: the cell with its nodes, tariff and declared bounds,
and the workloads drawn for it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Literal, get_args

from bench.workloads.arrivals import JobsBefore, SlotArrival, TraceArrivals, poisson
from bench.workloads.measured import MEASURED
from bench.workloads.tasks import (
    UNIT_MICROS,
    PaperTask,
    ValueDensity,
    draw_quotes,
    draw_tasks,
    mean_compute_over_memory,
    mean_work_samples,
    shortest_delay_s,
    vendor_name,
)
from bench.workloads.throughput import (
    MEMORY_GIB,
    MODELLED,
    POWER_KW,
    SEQUENCE_LENGTH,
    TARGET_MODULES,
    Throughput,
)
from infra.workloads.auction import AuctionWorkload
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import BidTerms, VendorQuoted
from schemas.auction.settings import PdftspPolicy
from schemas.base import HOURS_PER_DAY
from schemas.cells import MAX_KEPT_IDS, CellConfigured, GpuType, Node, Tariff, Zone
from schemas.jobs import JobSubmitted
from schemas.kind import PolicySettings
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from solvers.auction.market.fleet import Calendar

CELL = "paper"
ZONE = "gpt2"
SLOT_S = 600.0
NODE_TIMEOUT_S = 86_400.0
"""No node fails here; heartbeats of a day would only fill the ledger."""

NIGHT_UNITS_PER_KWH = 10.0
DAY_UNITS_PER_KWH = 20.0
DAY_HOURS = range(8, 20)
"""Ordinary prices of energy, if a unit is a cent. A full A100 then costs 1.0 units per node-slot on average,
a tenth of the median user's value."""

Gpus = Literal["A100", "A40", "mixed"]
Speeds = Literal["modelled", "measured"]
THROUGHPUTS: Mapping[Speeds, Throughput] = MappingProxyType({"modelled": MODELLED, "measured": MEASURED})


def types_of_nodes(gpus: Gpus, nodes: int) -> tuple[str, ...]:
    """Return the GPU type of each node; a mixed fleet alternates its types."""
    types = types_of(gpus)
    return tuple(types[number % len(types)] for number in range(nodes))


def types_of(gpus: Gpus) -> tuple[str, ...]:
    """Return the GPU types of a fleet."""
    return ("A100", "A40") if gpus == "mixed" else (gpus,)


@dataclass(frozen=True)
class PolicyBounds:
    """Quantiles of the declared value density that the operator uses as bounds (erratum P4). Strictly, Lemma
    2 needs a money unit below nearly all bids and a bound above nearly all. Prices then rise so fast that a
    tenth of the bids is admitted and most of the fleet is idle. With the median for both, a node-slot filled
    by winners of b-bar 1 ends at 1.7 times the bound; with better winners, the price ends higher.
    docs/results/auction.md has the alternatives that were tried.
    """

    money_unit_quantile: float = 0.5
    """Quantile for the money unit, in which Lemma 2 assumes b-bar >= 1: here not all bids satisfy it."""
    value_quantile: float = 0.5
    """Quantile for the bound on value per resource. Divided by the money unit, it gives alpha and beta."""
    density_quantile: float = 0.99
    """Quantile for the density beyond which a bid raises prices no further."""


def configuration(setting: "PaperSetting") -> CellConfigured:
    """Return a cell of one zone. Its epoch is midnight of 1970-01-01."""
    throughput = setting.throughput
    tariff = tuple(
        round(UNIT_MICROS * (DAY_UNITS_PER_KWH if hour in DAY_HOURS else NIGHT_UNITS_PER_KWH))
        for hour in range(HOURS_PER_DAY)
    )
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=SLOT_S,
        node_timeout_s=NODE_TIMEOUT_S,
        # The most that a cell of one zone can hold: no report of the day is removed.
        duplicate_window_events=MAX_KEPT_IDS // 2,
        tariffs=(Tariff(name="site", micros_per_kwh=tariff),),
        zones=(
            Zone(
                id=ZONE,
                base_model="gpt2",
                base_model_memory_gib=throughput.base_memory_gib,
                horizon_slots=setting.slots,
                gpu_types=tuple(
                    GpuType(
                        name=name,
                        samples_per_s=throughput.node_samples_per_s(name),
                        memory_gib=MEMORY_GIB[name],
                        power_kw=POWER_KW[name],
                    )
                    for name in types_of(setting.gpus)
                ),
                nodes=tuple(
                    Node(id=f"node-{number:04d}", gpu_type=gpu_type, tariff="site")
                    for number, gpu_type in enumerate(types_of_nodes(setting.gpus, setting.nodes))
                ),
                policy=_policy(setting),
            ),
        ),
        vendors=tuple(vendor_name(number) for number in range(setting.vendors)),
    )


def _policy(setting: "PaperSetting") -> PdftspPolicy:
    """Compute the bounds from the declared distribution, never from the drawn bids (erratum P4)."""
    density, bounds = setting.density, setting.bounds
    compute_over_memory = mean_compute_over_memory(setting.throughput)
    per_compute = density.quantile(bounds.value_quantile)
    unit = density.quantile(bounds.money_unit_quantile)
    return PdftspPolicy(
        kind="pdftsp",
        money_unit_micros=round(UNIT_MICROS * unit),
        max_value_per_compute_micros=round(UNIT_MICROS * per_compute),
        max_value_per_memory_micros=round(UNIT_MICROS * per_compute * compute_over_memory),
        max_density_units=density.quantile(bounds.density_quantile) / unit,
    )


def with_policy(cell: CellConfigured, policy: PolicySettings) -> CellConfigured:
    """Return a cell of one zone with another policy."""
    (zone,) = cell.zones
    return cell.model_copy(update={"zones": (zone.model_copy(update={"policy": policy}),)})


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
"""Number of vendors whose delays are part of the deadlines. These vendors are in every market, so deadlines
do not change if a market has more."""

MOST_ARRIVALS_PER_SLOT = 10_000
MOST_WORK_SCALE = 1_000.0


@dataclass(frozen=True)
class PaperSetting:
    """One point of the evaluation."""

    nodes: int = 100
    gpus: Gpus = "mixed"
    slots: int = 144
    """Slots of the day, 600 s each. Tasks arrive in all of them, and no deadline is after the last. A task
    that no longer fits is rejected like any other, as in a system that operates for one day."""
    arrivals_per_slot: float = 50.0
    """Mean of a Poisson distribution; all arrive at the beginning of the slot."""
    trace: TraceArrivals | JobsBefore | None = None
    """Real arrivals in place of drawn ones."""
    vendors: int = 5
    deadlines: str = "proportional"
    """Name in `DEADLINE_RULES`."""
    speeds: Speeds = "modelled"
    """Name in `THROUGHPUTS`."""
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
        if self.deadlines not in DEADLINE_RULES:
            raise ValueError(f"deadlines is {self.deadlines!r}, known are {', '.join(DEADLINE_RULES)}")
        if self.gpus not in get_args(Gpus):
            raise ValueError(f"gpus is {self.gpus!r}, known are {', '.join(get_args(Gpus))}")
        if self.speeds not in THROUGHPUTS:
            raise ValueError(f"speeds is {self.speeds!r}, known are {', '.join(THROUGHPUTS)}")

    @property
    def throughput(self) -> Throughput:
        """Speed and memory of tasks."""
        return THROUGHPUTS[self.speeds]


SeededSetting = tuple[PaperSetting, int]
"""A setting and the seed of a day."""


def arrivals_for_load(load: float, nodes: int, gpus: Gpus, work_scale: float) -> float:
    """Return the number of arrivals per slot at which the mean demand is `load` times the samples that a
    fleet can train.

    A node-slot of a type does its full step's samples for any tasks, so samples and node-slots of compute are
    equivalent.
    """
    per_slot = SLOT_S * math.fsum(map(MODELLED.node_samples_per_s, types_of_nodes(gpus, nodes)))
    return load * per_slot / mean_work_samples(work_scale)


def draw(setting: PaperSetting, seed: int) -> tuple[CellConfigured, AuctionWorkload]:
    """Draw the cell of a setting and its workload; equal seeds yield equal bytes.

    Raises:
        TraceError: the trace of the setting cannot be read, or is too short.
    """
    cell = configuration(setting)
    quotes = draw_quotes(CELL, setting.vendors, seed)
    if setting.trace is None:
        arrivals = poisson(setting.arrivals_per_slot, setting.slots, seed)
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
    shape, throughput = drawn.shape, setting.throughput
    # A plan starts with the slot after the arrival, and a vendor's delay counts in whole slots.
    first_slot = arrival.slot + 1
    if drawn.needs_preprocessing:
        first_slot += math.ceil(shortest_delay_s(allowed_vendors, drawn.dataset_samples) / SLOT_S)
    work_slots = drawn.work_slots(throughput, SLOT_S)
    rule = DEADLINE_RULES[setting.deadlines]
    span_slots = rule(drawn.haste, work_slots, setting.slots - first_slot)
    end_slot = min(first_slot + math.ceil(span_slots), setting.slots)
    value_units = drawn.value_units(setting.density, span_slots / work_slots, throughput, SLOT_S)
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
            memory_gib=throughput.task_memory_gib(shape),
            speed_samples_per_s={name: throughput.task_samples_per_s(name, shape) for name in gpu_types},
            needs_preprocessing=drawn.needs_preprocessing,
        ),
    )
    return TimedEvent(calendar.start_s(arrival.slot), bid)
