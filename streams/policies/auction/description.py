"""The state of an auction zone for an operator: plans by job, use of nodes, and prices in short."""

import math
from typing import Any

from solvers.auction.mechanism.auctioneer import Auctioneer
from streams.policies.auction.book import JobBook
from streams.policies.auction.judge import Judge
from streams.policies.auction.offers import basis_of, certificate_of, class_prices
from streams.policies.auction.replanning import Replanner


def described(auctioneer: Auctioneer, book: JobBook, replanner: Replanner, judge: Judge) -> dict[str, Any]:
    """See `ZonePolicy.describe`. Prices are figures by class of nodes, as in `ZonePriced`."""
    market, basis, waiting = auctioneer.market, basis_of(auctioneer.prices.basis), judge.describe()
    nodes = market.fleet.nodes
    planned = {id: job.describe(nodes, book.present_slot) for id, job in book.jobs.items()}
    return {
        "slot": book.present_slot,
        "horizon": {"first_slot": market.first_slot, "slots": market.horizon_slots},
        **waiting,
        "jobs": {**planned, **waiting["jobs"]},
        "nodes": {
            node: _described_node(auctioneer, row, row in replanner.leaving_rows)
            for row, node in enumerate(nodes)
        },
        "prices": [each.model_dump(mode="json") for each in class_prices(auctioneer)],
        "price_basis": None if basis is None else basis.model_dump(mode="json"),
        "certificate": certificate_of(auctioneer).model_dump(mode="json"),
    }


def _described_node(auctioneer: Auctioneer, row: int, is_leaving: bool) -> dict[str, Any]:
    """Describe a node; what is free is summed over the slots ahead."""
    market = auctioneer.market
    return {
        "up": bool(market.node_up[row]),
        "open": bool(market.node_open[row]),
        "leaving": is_leaving,
        "free_samples": math.fsum(market.free_samples[:, row].tolist()),
        "samples": float(market.capacity_samples[row]) * market.horizon_slots,
    }
