"""What `millrace quote` prints of an answer."""

from infra.views.words import describe
from schemas.auction.settings import AuctionPolicy
from tests.support.cells import Bench, ask, bid, zone


def test_a_quote_with_a_plan_names_the_bid_that_wins() -> None:
    (quoted,) = Bench.configured().send(ask())
    assert describe(quoted)[0] == "a bid of 2.000001 wins now"


def test_a_quote_of_a_full_cell_promises_no_bid() -> None:
    bench = Bench.configured()
    configuration = bench.cell.configuration
    assert configuration is not None
    bench.zone.live.add(configuration.live_jobs_bytes)
    (quoted,) = bench.send(ask())
    assert describe(quoted)[0].startswith("no bid wins now (cell_full): the live jobs of the cell hold ")
    assert quoted.evidence.offer.price is not None


def test_a_quote_says_what_prices_that_find_themselves_were_read_off() -> None:
    bench = Bench.configured(zones=(zone(policy=AuctionPolicy()),))

    def told() -> str:
        (quoted,) = bench.send(ask())
        (line,) = [line for line in describe(quoted) if line.startswith("priced by ")]
        return line

    assert told().endswith("; room costs the least (base and guard level 0)")
    while "room costs the least" in told():
        bench.send(bid(f"j{len(bench.ledger)}", 50.0))
    assert "; base level " in told()
    assert "towards the guard level, " in told()
