"""Compile the auction's kernels ahead of the first bid, which would otherwise wait seconds for it."""

import numpy as np

from schemas.base import HOURS_PER_DAY
from schemas.cells import Tariff
from solvers.auction.auctioneer import Auctioneer
from solvers.auction.demand import Demand
from solvers.auction.fleet import Fleet, NodeClass
from solvers.auction.market import Market
from solvers.auction.mechanism import PriceRises, Request
from solvers.auction.primal_dual import PrimalDual
from solvers.auction.window import VendorOption


def warm_up() -> None:
    """Judge one bid on a market of two nodes. The compiled code is kept on disk where that can be written."""
    tariff = Tariff(name="none", micros_per_kwh=(0,) * HOURS_PER_DAY)
    fleet = Fleet(
        nodes=("fast", "slow"),
        classes=(
            NodeClass("fast", tariff, 0.0, 4.0, 4.0, 0, 1),
            NodeClass("slow", tariff, 0.0, 2.0, 4.0, 1, 2),
        ),
        row_of={"fast": 0, "slow": 1},
        class_of_row=(0, 1),
    )
    mechanism = PrimalDual("critical", PriceRises(1.0, 1.0))
    auctioneer = Auctioneer(Market(fleet, 3, 0, lambda *_: 1.0), mechanism)
    demand = Demand.sized(3, np.array([2, 1], np.int64), 1.0, fleet)
    request = Request("first", demand, [VendorOption(None, 0, 0)], 0, 2)
    auctioneer.decide(100, request, auctioneer.appraise(request))
