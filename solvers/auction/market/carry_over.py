"""Transfer of use and prices to a new market when the nodes or the window of a zone change."""

import numpy as np

from solvers.auction.market.fleet import Fleet
from solvers.auction.market.market import Market
from solvers.compiled import Floats, Ints


def rows_of_both(before: Fleet, after: Fleet) -> tuple[Ints, Ints]:
    """Return the rows, before and after, of the nodes that two fleets share."""
    shared = [node for node in after.nodes if node in before.row_of]
    return (
        np.array([before.row_of[node] for node in shared], np.int64),
        np.array([after.row_of[node] for node in shared], np.int64),
    )


def carry_over_use(before: Market, after: Market) -> None:
    """Copy the use of shared nodes to a new market of the same first slot.

    Taken room of a node stays taken, whatever its capacity is now.
    """
    old, new = rows_of_both(before.fleet, after.fleet)
    kept = min(before.horizon_slots, after.horizon_slots)
    for name, capacity in (("free_samples", "capacity_samples"), ("free_gib", "capacity_gib")):
        taken = getattr(before, capacity)[old] - getattr(before, name)[:kept, old]
        getattr(after, name)[:kept, new] = getattr(after, capacity)[new] - taken
    after.node_up[new], after.node_open[new] = before.node_up[old], before.node_open[old]


def carry_over_prices(before: Market, after: Market, open_until_slot: int) -> list[float]:
    """Copy the prices of shared nodes to a new market of the same first slot.

    Prices of node-slots that bids could use already stay. For later ones, the rises stay, on top of their new
    opening prices. If the capacity of a node grows, its prices grow with it: per sample and per GiB they
    never fall.

    Args:
        open_until_slot: first slot that no bid could use yet.

    Returns:
        Terms of the growth of the dual objective: the rises of node-slots that bids could use by then, and
        the opening prices of new nodes.
    """
    old, new = rows_of_both(before.fleet, after.fleet)
    kept = min(before.horizon_slots, after.horizon_slots)
    opened = min(max(open_until_slot - after.first_slot, 0), kept)
    rises: list[float] = []
    for name, capacity, opening in (
        ("compute_price", "capacity_samples", Market.opening_compute_price),
        ("memory_price", "capacity_gib", Market.opening_memory_price),
    ):
        held: Floats = getattr(before, name)[:kept, old]
        growth = np.maximum(getattr(after, capacity)[new] / getattr(before, capacity)[old], 1.0)
        prices: Floats = getattr(after, name)
        fresh = prices[:kept, new]
        moved = np.maximum(held + (fresh - opening(before, after.first_slot, kept)[:, old]), fresh)
        moved[:opened] = held[:opened] * growth
        rises += (moved[:opened] - held[:opened]).ravel().tolist()
        prices[:kept, new] = moved
        rises += np.delete(prices[:opened], new, axis=1).ravel().tolist()
    after.price_order.sort(0)
    return rises
