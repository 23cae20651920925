"""How a zone's market stands, in numbers few enough to watch."""

import math

import numpy as np

from schemas.decisions import ClassPrices, ZonePriced
from solvers.auction.auctioneer import Auctioneer
from streams.auction.offers import certificate_of


def priced(zone: str, auctioneer: Auctioneer, live_jobs: int) -> ZonePriced:
    """Use and prices per class of nodes over the whole window."""
    market = auctioneer.market
    classes = []
    for node_class in market.fleet.classes:
        rows = slice(node_class.start, node_class.stop)
        compute, memory = market.compute_price[:, rows], market.memory_price[:, rows]
        cells = compute.size
        classes.append(
            ClassPrices(
                gpu_type=node_class.gpu_type,
                tariff=node_class.tariff.name,
                nodes_up=int(np.count_nonzero(market.node_up[rows])),
                nodes=node_class.stop - node_class.start,
                compute_used_share=1
                - _sum(market.free_samples[:, rows]) / (node_class.capacity_samples * cells),
                memory_used_share=1 - _sum(market.free_gib[:, rows]) / (node_class.capacity_gib * cells),
                mean_compute_price_micros=_sum(compute) / cells,
                highest_compute_price_micros=float(compute.max()),
                mean_memory_price_micros=_sum(memory) / cells,
                highest_memory_price_micros=float(memory.max()),
            )
        )
    return ZonePriced(
        zone=zone,
        slot=market.first_slot - 1,
        live_jobs=live_jobs,
        classes=tuple(classes),
        certificate=certificate_of(auctioneer),
    )


def _sum(cells: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """The exact sum: numpy's own depends on the machine's vector width."""
    return math.fsum(cells.ravel().tolist())
