"""Lines that `millrace quote` prints for an answer."""

import json

from infra.views.auction.basis import describe_basis
from infra.views.words import describe
from schemas.auction.evidence import PriceBasis, evidence_of
from schemas.auction.settings import AuctionPolicy
from tests.support.cells import Bench, ask, bid, zone


def test_quote_with_plan_names_winning_bid() -> None:
    (quoted,) = Bench.configured().send(ask())
    assert describe(quoted)[0] == "a bid of 2.000001 wins now"


def test_quote_of_full_cell_promises_no_bid() -> None:
    bench = Bench.configured()
    configuration = bench.cell.configuration
    assert configuration is not None
    bench.zone.live.add(configuration.live_jobs_bytes)
    (quoted,) = bench.send(ask())
    assert describe(quoted)[0].startswith("no bid wins now (cell_full): the live jobs of the cell hold ")
    assert quoted.evidence.offer.price is not None


def test_quote_shows_basis_of_found_prices() -> None:
    bench = Bench.configured(zones=(zone(policy=AuctionPolicy()),))

    def basis_line() -> str:
        (quoted,) = bench.send(ask())
        (line,) = [line for line in describe(quoted) if line.startswith("priced by ")]
        return line

    assert basis_line().endswith("; both levels are 0, so prices are at their least, set by energy costs")
    while "prices are at their least" in basis_line():
        bench.send(bid(f"j{len(bench.ledger)}", 50.0))
    assert "; base level " in basis_line()
    assert ", guard level " in basis_line()


def test_expected_hours_are_shown_once_known() -> None:
    (quoted,) = Bench.configured(zones=(zone(policy=AuctionPolicy()),)).send(ask())
    basis = evidence_of(quoted).offer.basis
    assert (basis.expected_slots, basis.believed_part) == (basis.span_slots, 0.0)
    assert "the busiest of the next" not in describe_basis(basis)
    known = basis.model_copy(update={"expected_slots": 1.5 * basis.span_slots, "believed_part": 0.8})
    assert (
        f"the busiest of the next {basis.span_slots} slots have 1.5 times the mean "
        "(80% of the differences between hours count); "
    ) in describe_basis(known)


def test_older_basis_shows_no_hours() -> None:
    (quoted,) = Bench.configured(zones=(zone(policy=AuctionPolicy()),)).send(ask())
    fields = evidence_of(quoted).offer.basis.model_dump(mode="json")
    del fields["expected_slots"], fields["believed_part"]
    older = PriceBasis.model_validate_json(json.dumps(fields))
    assert (older.expected_slots, older.believed_part) == (None, 0.0)
    assert "the busiest of the next" not in describe_basis(older)
