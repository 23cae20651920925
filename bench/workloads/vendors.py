"""Labour vendors: prices (q_in) and delays (h_in), affine in the size of the data.

Each vendor has separate seeded draws, so that a market with more vendors contains the smaller one unchanged.
"""

import math
import random
from collections.abc import Sequence

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
