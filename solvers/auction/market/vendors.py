"""Prices of labour vendors for preparing a task's data: their standing quotes, for the size of the data."""

import math
from collections.abc import Mapping

from schemas.auction.quotes import VendorQuoted
from schemas.lora import LoraWorkload
from solvers.auction.market.demand import UnjudgeableError
from solvers.auction.market.window import VendorOption


def vendor_options(
    quotes: Mapping[str, VendorQuoted], workload: LoraWorkload, slot_s: float
) -> list[VendorOption]:
    """Return every vendor's price and delay for a task, by vendor; one option without vendor if it needs
    none.

    Raises:
        UnjudgeableError: the task needs pre-processing and no vendor quotes.
    """
    if not workload.needs_preprocessing:
        return [VendorOption(None, 0, 0)]
    if not quotes:
        raise UnjudgeableError("no_vendor")
    return [
        VendorOption(vendor, _price_micros(quote, workload), _delay_slots(quote, workload, slot_s))
        for vendor, quote in sorted(quotes.items())
    ]


def _price_micros(quote: VendorQuoted, workload: LoraWorkload) -> int:
    # Whole numbers only: the product may exceed the range of a float.
    return quote.fixed_price_micros - (
        -quote.price_per_thousand_samples_micros * workload.dataset.samples // 1_000
    )


def _delay_slots(quote: VendorQuoted, workload: LoraWorkload, slot_s: float) -> int:
    delay_s = quote.fixed_delay_s + quote.delay_per_thousand_samples_s * workload.dataset.samples / 1_000
    return math.ceil(delay_s / slot_s)
