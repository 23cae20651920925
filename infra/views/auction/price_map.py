"""Map of the prices of node-slots as lines of text: a row for each node, a column for each slot."""

import math
from collections.abc import Iterator, Mapping, Sequence

from infra.text import units

MOST_COLUMNS = 100
"""Columns of a map; with more slots, each column has several, and shows their highest price."""
MOST_NODES = 50
"""Rows of a map."""
_STEPS = 9
_FREE = "."


def price_map(first_slot: int, prices: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield the lines of a map.

    A dot is a price of 0; the digits 1 to 9 are ninths of the highest price, rounded up.

    Args:
        first_slot: slot of the first price.
        prices: prices in micros of whole node-slots, by node; equally many of each.
    """
    highest = max((price for row in prices.values() for price in row), default=0.0)
    slots = max(map(len, prices.values()), default=0)
    width = -(-slots // MOST_COLUMNS) or 1
    columns = "each column is a slot" if width == 1 else f"each column is the highest of {width} slots"
    yield f"slots {first_slot} to {first_slot + slots - 1}: {columns}; 9 is {units(math.ceil(highest))}"
    names = list(prices)[:MOST_NODES]
    margin = max(map(len, names), default=0)
    for name in names:
        row = prices[name]
        cells = (_mark(max(row[start : start + width]), highest) for start in range(0, slots, width))
        yield f"{name:<{margin}}  {''.join(cells)}"
    if len(prices) > MOST_NODES:
        yield f"… and {len(prices) - MOST_NODES} more nodes: --json has all"


def _mark(price: float, highest: float) -> str:
    return str(math.ceil(min(price / highest, 1.0) * _STEPS)) if price > 0 else _FREE
