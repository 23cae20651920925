"""What `millrace quote` prints of an answer."""

from infra.views.words import describe
from tests.support.cells import Bench, ask


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
