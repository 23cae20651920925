"""Tasks and their values, drawn from seeded streams, one per aspect (erratum P7); and labour vendors: prices
(q_in) and delays (h_in), affine in the size of the data.

Each vendor has separate seeded draws, so that a market with more vendors contains the smaller one unchanged.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from bench.workloads.throughput import MEMORY_GIB, RANKS, LoraShape, Throughput
from schemas.auction.bids import VendorQuoted

UNIT_MICROS = 1_000_000
"""One unit of money."""

MEAN_DATASET_SAMPLES = 12_500
"""Mean of 5,000 to 20,000, uniform: the size of data at which vendors are compared here."""

CHEAPEST_PRICE_UNITS = 3.8
PRICE_SPREAD = 5.0
"""A vendor's price at the mean size of data is log-uniform from the cheapest to this multiple. Its mean is a
fifth of a median task's value: the choice of vendor must matter, but not dominate."""

FIXED_PRICE_PART = (0.1, 0.4)
"""Range of the uniform part of the price at the mean size that does not depend on the size."""

SHORTEST_DELAY_S = 800.0
DELAY_SPREAD = 4.0
"""The delay at the mean size is log-uniform from the shortest to this multiple: two to six slots."""

FIXED_DELAY_PART = (0.2, 0.6)
"""Range of the uniform part of the delay at the mean size that does not depend on the size."""

HASTE_FOR_MONEY = 0.7
"""Weight of a vendor's rank by price, dearest first, in its rank by delay; the rest is a draw of its own.
Faster vendors tend to be dearer, and some are dear and slow."""


def vendor_name(number: int) -> str:
    """Return the name of a vendor by number, from 0."""
    return f"vendor-{number:02d}"


def draw_quotes(cell: str, vendors: int, seed: int) -> list[VendorQuoted]:
    """Draw the quotes of a number of vendors."""
    return [
        _quote(cell, vendor_name(number), random.Random(f"{seed}/{number}/vendor"))
        for number in range(vendors)
    ]


def _quote(cell: str, vendor: str, draws: random.Random) -> VendorQuoted:
    dearness = draws.random()
    slowness = HASTE_FOR_MONEY * (1.0 - dearness) + (1.0 - HASTE_FOR_MONEY) * draws.random()
    price_units = CHEAPEST_PRICE_UNITS * PRICE_SPREAD**dearness
    delay_s = SHORTEST_DELAY_S * DELAY_SPREAD**slowness
    fixed_price, fixed_delay = draws.uniform(*FIXED_PRICE_PART), draws.uniform(*FIXED_DELAY_PART)
    thousands = MEAN_DATASET_SAMPLES / 1_000
    return VendorQuoted(
        cell=cell,
        vendor=vendor,
        fixed_price_micros=round(UNIT_MICROS * price_units * fixed_price),
        price_per_thousand_samples_micros=round(UNIT_MICROS * price_units * (1 - fixed_price) / thousands),
        fixed_delay_s=delay_s * fixed_delay,
        delay_per_thousand_samples_s=delay_s * (1 - fixed_delay) / thousands,
    )


def mean_price_units(samples: int) -> float:
    """Return the mean price for a size of data, over the distribution, not over the drawn vendors."""
    level = CHEAPEST_PRICE_UNITS * (PRICE_SPREAD - 1) / math.log(PRICE_SPREAD)
    fixed = math.fsum(FIXED_PRICE_PART) / 2
    return level * (fixed + (1 - fixed) * samples / MEAN_DATASET_SAMPLES)


def shortest_delay_s(quotes: Sequence[VendorQuoted], samples: int) -> float:
    """Return the shortest delay among vendors for a size of data (s)."""
    return min(q.fixed_delay_s + q.delay_per_thousand_samples_s * samples / 1_000 for q in quotes)


FASTEST = "A100"
"""Unit of work and value, even in fleets without this type: a user does not depend on the fleet."""

DATASET_SAMPLES = (5_000, 20_000)
EPOCHS = (1, 5)
"""Uniform, as in section 5.1."""

BATCH_SIZES = (8, 16, 24, 32)
ACCUMULATIONS = (1, 2, 4)
LEAST_SEQUENCES_AT_ONCE = 4
"""Uniform; each part of an accumulated batch has at least this many sequences."""

PREPROCESSING_SHARE = 0.5
"""Probability that a task's data needs a vendor: the market of vendors is half of the paper's subject."""

URGENCY = 0.5
"""Weight of urgency: a value is multiplied by (1 + this / slack), slack being the allowed slots over the
slots of work. It adds half without slack, and a tenth at five times the work."""


@dataclass(frozen=True)
class ValueDensity:
    """Value of a node-slot of an A100 to users: lognormal, in units of money."""

    median_units: float = 10.0
    """Median density. With a cent as unit, 0.60 of the currency per GPU-hour: the order of their cost."""
    log_deviation: float = 1.75
    """Deviation of the natural logarithm: half of the users are between a third of the median and three times
    as much. With the load, it determines the possible gain over first come, first served."""

    def of(self, normal: float) -> float:
        """Return the density at a draw from the standard normal distribution."""
        return self.median_units * math.exp(self.log_deviation * normal)

    def quantile(self, part: float) -> float:
        """Return the quantile of users' densities."""
        return self.of(NormalDist().inv_cdf(part))


@dataclass(frozen=True)
class PaperTask:
    """A task without a deadline."""

    dataset_samples: int
    epochs: int
    shape: LoraShape
    needs_preprocessing: bool
    normal: float
    """Standard normal draw that determines the value density."""
    haste: float
    """Uniform draw from 0 to 1 that determines the deadline."""

    @property
    def work_samples(self) -> int:
        """Samples of work, M_i."""
        return self.dataset_samples * self.epochs

    def work_slots(self, throughput: Throughput, slot_s: float) -> int:
        """Return the slots of the work on the fastest type."""
        per_slot = math.floor(throughput.task_samples_per_s(FASTEST, self.shape) * slot_s)
        return math.ceil(self.work_samples / per_slot)

    def value_units(
        self, density: ValueDensity, slack: float, throughput: Throughput, slot_s: float
    ) -> float:
        """Return v_i: density x node-slots of an A100 x urgency, plus the vendors' mean price if one is
        needed."""
        compute = self.work_samples / (throughput.node_samples_per_s(FASTEST) * slot_s)
        training = density.of(self.normal) * compute * (1.0 + URGENCY / max(slack, 1.0))
        return training + (mean_price_units(self.dataset_samples) if self.needs_preprocessing else 0.0)


def draw_tasks(seed: int, work_scale: float) -> Iterator[PaperTask]:
    """Yield an endless stream: equal places have equal tasks, for any number of tasks."""
    data, epochs, shapes, prepared, values, haste = (
        random.Random(f"{seed}/{aspect}")
        for aspect in ("data", "epochs", "shapes", "preprocessing", "values", "deadlines")
    )
    while True:
        batch_size, accumulation = shapes.choice(BATCH_SIZES), shapes.choice(ACCUMULATIONS)
        yield PaperTask(
            dataset_samples=math.ceil(work_scale * data.randint(*DATASET_SAMPLES)),
            epochs=epochs.randint(*EPOCHS),
            shape=_shape(batch_size, accumulation, shapes.choice(RANKS)),
            needs_preprocessing=prepared.random() < PREPROCESSING_SHARE,
            normal=values.gauss(0.0, 1.0),
            haste=haste.random(),
        )


def mean_work_samples(work_scale: float) -> float:
    """Return the mean M_i of a task."""
    return work_scale * fmean(DATASET_SAMPLES) * fmean(EPOCHS)


def mean_compute_over_memory(throughput: Throughput) -> float:
    """Return the mean over all shapes on an A100 of share of a node's compute over share of its memory."""
    room_gib = MEMORY_GIB[FASTEST] - throughput.base_memory_gib
    node = throughput.node_samples_per_s(FASTEST)
    shapes = [_shape(b, a, r) for b in BATCH_SIZES for a in ACCUMULATIONS for r in RANKS]
    return fmean(
        throughput.task_samples_per_s(FASTEST, shape) / node / (throughput.task_memory_gib(shape) / room_gib)
        for shape in shapes
    )


def _shape(batch_size: int, accumulation: int, rank: int) -> LoraShape:
    return LoraShape(batch_size, min(accumulation, batch_size // LEAST_SEQUENCES_AT_ONCE), rank)
