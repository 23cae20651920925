"""Properties of jobs that no trace records, from seeded distributions: shape, size, deadline, data, bid.

The papers leave these distributions open (erratum P7). Each is stated with its constant; docs/workloads.md
gives the reasons.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Annotated

from pydantic import Field

from infra.workloads.arrivals import Arrival, arrivals_of
from infra.workloads.drawing import Drawing, DrawingOptions
from infra.workloads.timed import TimedEvent, WorkloadError, check_time
from schemas.auction.bids import BidTerms, VendorQuoted
from schemas.auction.settings import AuctionPolicy, PdftspPolicy
from schemas.base import Event
from schemas.cells import CellConfigured, GpuType, ThroughputRow, Zone
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload

SLACK = (1.5, 6.0)
"""Bounds of a uniform factor: time from the earliest possible start to the deadline, divided by the running
time on the slowest GPU type."""

MEDIAN_MARKUP = 4.0
LOG_MARKUP_DEVIATION = 0.8
"""A bid is the work's operational cost on the slowest GPU type, a vendor's price included, times a lognormal
markup: one bid in twenty-five is below its own cost."""

PREPROCESSING_SHARE = 0.25
"""Probability that a job needs a labour vendor, in a cell that has any."""

LEARNING_RATES = (3e-4, 3e-3)
"""Bounds of the log-uniform learning rates, unless the demands have others."""

MEDIAN_DATASET_SAMPLES = 2_000
LOG_DATASET_DEVIATION = 1.0
"""Lognormal size of a dataset that exists only in the simulation."""

VENDOR_FIXED_PRICE_UNITS = (0.02, 0.10)
VENDOR_PRICE_PER_THOUSAND_UNITS = (0.01, 0.05)
"""Bounds of uniform prices, in money units: the unit of the first zone's policy, or else the operational cost
of `NODE_SLOTS_PER_UNIT`."""

NODE_SLOTS_PER_UNIT = 5.0
"""Full node-slots of the first GPU type whose operational cost at the mean tariff is one money unit."""

VENDOR_FIXED_DELAY_SLOTS = (0.0, 1.0)
VENDOR_DELAY_PER_THOUSAND_SLOTS = (0.0, 0.5)
"""Bounds of uniform delays; the dearest vendor gets the shortest ones."""

MOST_WORK_PART_OF_HORIZON = 0.5
"""Largest part of the horizon that a job may take on the slowest GPU type; longer jobs are shortened."""


@dataclass(frozen=True)
class BidDemands:
    """Sizes of the drawn jobs, and their datasets."""

    median_work_slots: float = 3.0
    """Duration of the job of median GPU time on the slowest GPU type; the others are in proportion."""
    longest_work_slots: float = math.inf
    """Longest duration: longer jobs are cut to it, as they are to `MOST_WORK_PART_OF_HORIZON`."""
    slack: tuple[float, float] = SLACK
    learning_rates: tuple[float, float] = LEARNING_RATES
    target_modules: tuple[str, ...] = ("q_proj", "v_proj")
    datasets: tuple[Dataset, ...] = ()
    """Datasets to choose from; empty draws sizes of datasets that exist only in the simulation."""


@dataclass(frozen=True)
class BidDraw:
    """Draws the bids for one zone of a cell; the same seed draws the same bids."""

    cell: CellConfigured
    zone: Zone
    quotes: Sequence[VendorQuoted]
    seed: int
    demands: BidDemands = field(default_factory=BidDemands)

    def jobs(
        self, arrivals: Sequence[Arrival], start_s: float, id_prefix: str = "job"
    ) -> list[TimedEvent[JobSubmitted]]:
        """Return a job for each arrival; the workload's time 0 is `start_s`.

        Raises:
            WorkloadError: the zone has no throughput table to size the work by.
        """
        shapes = _shapes(self.zone)
        rng = random.Random(f"{self.seed}/bids/{self.zone.id}")
        median_gpu_s = median(arrival.gpu_s for arrival in arrivals) or 1.0
        bids = []
        for index, arrival in enumerate(arrivals):
            work_slots = self.demands.median_work_slots * arrival.gpu_s / median_gpu_s
            time_s = start_s + arrival.offset_s
            workload, terms = self._task(rng, rng.choice(shapes), work_slots, time_s)
            bid = JobSubmitted(
                cell=self.cell.cell,
                job_id=f"{id_prefix}-{index:04d}",
                user=arrival.user,
                zone=self.zone.id,
                workload=workload,
                terms=terms,
            )
            bids.append(TimedEvent(time_s, bid))
        return bids

    def _task(
        self, rng: random.Random, row: ThroughputRow, work_slots: float, time_s: float
    ) -> tuple[LoraWorkload, BidTerms]:
        slot_s = self.cell.slot_s
        most_slots = min(self.demands.longest_work_slots, MOST_WORK_PART_OF_HORIZON * self.zone.horizon_slots)
        samples = min(work_slots, most_slots) * slot_s * row.samples_per_s
        work_samples = max(round(samples / row.batch_size), 1) * row.batch_size
        work_s = work_samples / row.samples_per_s
        dataset = self._dataset(rng)
        needs_vendor = bool(self.quotes) and rng.random() < PREPROCESSING_SHARE
        vendor_micros, delay_s = self._vendor(dataset) if needs_vendor else (0.0, 0.0)
        # A plan starts with the next slot, and a vendor's delay counts in whole slots.
        earliest_s = time_s + 2 * slot_s + delay_s
        deadline_s = earliest_s + work_s * rng.uniform(*self.demands.slack)
        check_time(deadline_s)
        workload = LoraWorkload(
            work_samples=work_samples,
            dataset=dataset,
            hyperparameters=LoraHyperparameters(
                rank=row.rank,
                alpha=2.0 * row.rank,
                target_modules=self.demands.target_modules,
                learning_rate=math.exp(rng.uniform(*map(math.log, self.demands.learning_rates))),
                batch_size=row.batch_size,
                sequence_length=row.sequence_length,
                seed=rng.randrange(2**31),
            ),
            needs_preprocessing=needs_vendor,
        )
        markup = MEDIAN_MARKUP * math.exp(rng.gauss(0, LOG_MARKUP_DEVIATION))
        bid_micros = self._within_bounds(
            row, work_s, (self._cost_micros(row, work_s) + vendor_micros) * markup
        )
        return workload, BidTerms(bid_micros=bid_micros, deadline_s=deadline_s)

    def _dataset(self, rng: random.Random) -> Dataset:
        if self.demands.datasets:
            return rng.choice(self.demands.datasets)
        samples = round(MEDIAN_DATASET_SAMPLES * math.exp(rng.gauss(0, LOG_DATASET_DEVIATION)))
        return Dataset(path=f"drawn/{rng.randrange(10**6):06d}.jsonl", samples=max(samples, 1))

    def _vendor(self, dataset: Dataset) -> tuple[float, float]:
        """Return the mean price (micros) and the mean delay (s) of the vendors for a dataset."""
        thousands = dataset.samples / 1_000
        return (
            fmean(
                q.fixed_price_micros + q.price_per_thousand_samples_micros * thousands for q in self.quotes
            ),
            fmean(q.fixed_delay_s + q.delay_per_thousand_samples_s * thousands for q in self.quotes),
        )

    def _gpu(self, row: ThroughputRow) -> GpuType:
        return next(gpu for gpu in self.zone.gpu_types if gpu.name == row.gpu_type)

    def _cost_micros(self, row: ThroughputRow, work_s: float) -> float:
        """Return the operational cost of the work at the mean tariff of the cell."""
        gpu = self._gpu(row)
        micros_per_kwh = fmean(fmean(tariff.micros_per_kwh) for tariff in self.cell.tariffs)
        return micros_per_kwh * gpu.power_kw * row.samples_per_s / gpu.samples_per_s * work_s / 3_600

    def _within_bounds(self, row: ThroughputRow, work_s: float, bid_micros: float) -> int:
        """Cut a bid to the declared bounds on value per resource, which the prices' guarantees need."""
        gpu, policy = self._gpu(row), _auction_policy(self.zone)
        bounds = policy.bounds if isinstance(policy, PdftspPolicy) else None
        if bounds is None:
            return int(bid_micros)
        work_slots = work_s / self.cell.slot_s
        compute = work_slots * row.samples_per_s / gpu.samples_per_s
        memory = work_slots * row.memory_gib / (gpu.memory_gib - self.zone.base_model_memory_gib)
        most_micros = (
            bounds.max_value_per_compute_micros * compute,
            bounds.max_value_per_memory_micros * memory,
        )
        return int(min(bid_micros, *most_micros))


def _unit_micros(cell: CellConfigured) -> float:
    zone = cell.zones[0]
    policy = _auction_policy(zone)
    if isinstance(policy, PdftspPolicy) and policy.money_unit_micros is not None:
        return policy.money_unit_micros
    micros_per_kwh = fmean(fmean(tariff.micros_per_kwh) for tariff in cell.tariffs)
    return NODE_SLOTS_PER_UNIT * micros_per_kwh * zone.gpu_types[0].power_kw * cell.slot_s / 3_600


def draw_quotes(cell: CellConfigured, seed: int) -> list[VendorQuoted]:
    """Draw a standing quote of each of a cell's vendors; a dearer vendor is faster."""
    rng = random.Random(f"{seed}/vendors")
    unit_micros = _unit_micros(cell)

    def drawn(bounds: tuple[float, float], scale: float) -> list[float]:
        return sorted(rng.uniform(*bounds) * scale for _ in cell.vendors)

    prices = zip(
        drawn(VENDOR_FIXED_PRICE_UNITS, unit_micros),
        drawn(VENDOR_PRICE_PER_THOUSAND_UNITS, unit_micros),
        reversed(drawn(VENDOR_FIXED_DELAY_SLOTS, cell.slot_s)),
        reversed(drawn(VENDOR_DELAY_PER_THOUSAND_SLOTS, cell.slot_s)),
        strict=True,
    )
    return [
        VendorQuoted(
            cell=cell.cell,
            vendor=vendor,
            fixed_price_micros=round(fixed_micros),
            price_per_thousand_samples_micros=round(sized_micros),
            fixed_delay_s=fixed_s,
            delay_per_thousand_samples_s=sized_s,
        )
        for vendor, (fixed_micros, sized_micros, fixed_s, sized_s) in zip(cell.vendors, prices, strict=True)
    ]


def _auction_policy(zone: Zone) -> AuctionPolicy | PdftspPolicy:
    """Return a zone's auction policy; pdFTSP's may state its money unit and its bounds on bids."""
    if not isinstance(zone.policy, AuctionPolicy | PdftspPolicy):
        raise WorkloadError(
            f"zone {zone.id} is under policy {zone.policy.kind}, and bids are drawn from the settings of an "
            "auction: set policy auction in the file, and select the other by --policy"
        )
    return zone.policy


def _shapes(zone: Zone) -> list[ThroughputRow]:
    """Return the slowest row of each shape in the throughput table."""
    slowest: dict[tuple[int, int, int], ThroughputRow] = {}
    for row in zone.throughput:
        shape = (row.rank, row.batch_size, row.sequence_length)
        found = slowest.get(shape)
        if found is None or row.samples_per_s < found.samples_per_s:
            slowest[shape] = row
    if not slowest:
        raise WorkloadError(f"zone {zone.id} has no throughput table to size a workload by")
    return [slowest[shape] for shape in sorted(slowest)]


@dataclass(frozen=True)
class AuctionWorkload:
    """Events for the auction zones of a cell."""

    quotes: list[VendorQuoted]
    """Quotes that stand from the start on."""
    jobs: list[TimedEvent[JobSubmitted]]
    """Jobs in the order of their times."""

    def inputs(self, start_s: float) -> list[TimedEvent[Event]]:
        """Return all events; the workload's time 0 is `start_s`."""
        return [*(TimedEvent(start_s, quote) for quote in self.quotes), *self.jobs]


def draw_workload(
    cell: CellConfigured,
    arrivals: Sequence[Arrival],
    start_s: float,
    seed: int,
    demands: BidDemands | None = None,
) -> AuctionWorkload:
    """Draw bids for `arrivals`, from `start_s` on. A zone gets bids in proportion to its nodes.

    Raises:
        WorkloadError: a zone that gets bids has no throughput table.
    """
    quotes = draw_quotes(cell, seed)
    rng = random.Random(f"{seed}/zones")
    nodes = [len(zone.nodes) for zone in cell.zones]
    zones = rng.choices(range(len(cell.zones)), nodes, k=len(arrivals))
    bids: list[TimedEvent[JobSubmitted]] = []
    for index, zone in enumerate(cell.zones):
        share = [arrival for arrival, chosen in zip(arrivals, zones, strict=True) if chosen == index]
        if share:
            draw = BidDraw(cell, zone, quotes, seed, demands or BidDemands())
            bids += draw.jobs(share, start_s, id_prefix=f"{zone.id}-{seed}")
    return AuctionWorkload(quotes, sorted(bids, key=lambda timed: timed.time_s))


DEFAULT_JOBS = 200
DEFAULT_SPAN_SLOTS = 72.0


class AuctionOptions(DrawingOptions):
    """Options of drawn bids, as in `BidDemands`."""

    median_work_slots: Annotated[float, Field(ge=0.001, le=10_000)] = 3.0


def draw(drawing: Drawing) -> list[TimedEvent[Event]]:
    """Draw bids, and a standing quote of each of the cell's vendors; a trace gives arrivals and sizes.

    Raises:
        WorkloadError: an option is invalid, a zone's settings give no sizes for bids, or the trace is too
            short.
        TraceError: the trace is invalid.
    """
    demands = BidDemands(median_work_slots=drawing.options_as(AuctionOptions).median_work_slots)
    jobs = DEFAULT_JOBS if drawing.jobs is None else drawing.jobs
    span_s = DEFAULT_SPAN_SLOTS * drawing.cell.slot_s if drawing.span_s is None else drawing.span_s
    arrivals = arrivals_of(drawing.trace, jobs, span_s, drawing.seed)
    cell = drawing.cell.model_copy(update={"zones": drawing.zones})
    return draw_workload(cell, arrivals, cell.epoch_s, drawing.seed, demands).inputs(cell.epoch_s)
