"""Labour vendors: what they charge (q_in) and how long they take (h_in), affine in the size of the data.

Each vendor has separate seeded draws, so that a market with more vendors contains the smaller one unchanged.
"""

import math
import random
from collections.abc import Sequence

from schemas.auction.quotes import VendorQuoted

UNIT_MICROS = 1_000_000
"""One unit of money."""

MEAN_DATASET_SAMPLES = 12_500
"""Of 5,000 to 20,000, uniform: the size of data at which vendors are compared here."""

CHEAPEST_PRICE_UNITS = 3.8
PRICE_SPREAD = 5.0
"""A vendor's price at the mean size of data is log-uniform from the cheapest to so many times as much. Its
mean is a fifth of what a median task is worth: a choice of vendor must matter, not rule."""

FIXED_PRICE_PART = (0.1, 0.4)
"""Uniform part of the price at the mean size that is charged whatever the size."""

SHORTEST_DELAY_S = 800.0
DELAY_SPREAD = 4.0
"""The delay at the mean size is log-uniform from the shortest to so many times as long: two to six slots."""

FIXED_DELAY_PART = (0.2, 0.6)
"""Uniform part of the delay at the mean size that passes whatever the size."""

HASTE_FOR_MONEY = 0.7
"""How much of a vendor's place among delays is given by its place among prices, dearest first; the rest is a
draw of its own. Faster tends to be dearer, and some are dear and slow."""


def vendor_name(number: int) -> str:
    """Of the vendor with this number, from 0."""
    return f"vendor-{number:02d}"


def draw_quotes(cell: str, vendors: int, seed: int) -> list[VendorQuoted]:
    """The standing quotes of so many vendors."""
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
    """What vendors charge for so much data on average over the distribution, not over those drawn."""
    level = CHEAPEST_PRICE_UNITS * (PRICE_SPREAD - 1) / math.log(PRICE_SPREAD)
    fixed = math.fsum(FIXED_PRICE_PART) / 2
    return level * (fixed + (1 - fixed) * samples / MEAN_DATASET_SAMPLES)


def shortest_delay_s(quotes: Sequence[VendorQuoted], samples: int) -> float:
    """The delay of the fastest of these vendors for so much data."""
    return min(q.fixed_delay_s + q.delay_per_thousand_samples_s * samples / 1_000 for q in quotes)
