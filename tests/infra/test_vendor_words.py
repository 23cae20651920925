"""Views of orders and deliveries."""

import pytest

from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.views.figures import zone_rows
from infra.views.state_lines import state_lines
from infra.views.words import describe, happening
from schemas.auction.deliveries import Deliveries, PreprocessingOrdered
from schemas.auction.settings import AuctionPolicy
from tests.support.cells import Bench, bid, delivered, failed_order, tick, vendor, withdraw, zone

PRICE_AND_TIME = "fast for 3.0000, due by 1970-01-01T00:16:50.000Z (slot 1)"


@pytest.fixture
def bench() -> Bench:
    """A zone that orders pre-processing, with an order for job "j"."""
    bench = Bench.configured(zones=(zone(policy=AuctionPolicy(deliveries=Deliveries())),))
    bench.send(vendor("fast", 3.0, 10.0), bid(work_samples=100, needs_preprocessing=True))
    return bench


def order(bench: Bench) -> PreprocessingOrdered:
    (found,) = (each.outcome for each in bench.decisions if isinstance(each.outcome, PreprocessingOrdered))
    return found


def lines(bench: Bench, since: int = 0) -> list[str]:
    """The lines of a watcher."""
    return [line for each in bench.decisions[since:] if (line := happening(each, "auction")) is not None]


def test_watchers_see_order_and_delivery(bench: Bench) -> None:
    assert lines(bench)[-1] == f"j waits for its data, from {PRICE_AND_TIME}"
    bench.send(delivered("fast", order(bench).order_id))
    assert lines(bench)[-1] == "j has its data (in_time): fast gets 3.0000"


def test_watchers_see_late_vendors(bench: Bench) -> None:
    since = len(bench.decisions)
    bench.send(*map(tick, range(8)))
    shown = lines(bench, since)
    assert "fast is late and gets no more orders before its next quote" in shown
    assert "j planned again (delivery_late): 100 samples left" in shown
    assert "j: order of fast closed (job_over)" in shown


def test_story_states_order_delivery_and_payment(bench: Bench) -> None:
    event = delivered("fast", order(bench).order_id)
    (accepted,) = bench.send(event)
    assert describe(order(bench), "auction") == [f"its data are ordered from {PRICE_AND_TIME}"]
    assert describe(event, "auction") == [
        "fast has prepared 900 samples in prepared/c/fast/0/j.jsonl, 18000 bytes",
        f"BLAKE2b {'a' * 64}",
    ]
    assert describe(accepted, "auction") == ["delivered (in_time): fast gets 3.0000"]


def test_story_states_why_an_order_failed(bench: Bench) -> None:
    event = failed_order("fast", order(bench).order_id, reason="data_missing", detail="no such file")
    closed, refunded = bench.send(event)
    assert describe(event, "auction") == ["fast cannot prepare the data (data_missing): no such file"]
    assert describe(closed, "auction") == ["order of fast closed (data_missing): there is no file d.jsonl"]
    assert "fast cannot prepare d.jsonl: there is no such file" in describe(refunded, "auction")[0]


def test_state_shows_the_open_order(bench: Bench) -> None:
    text = "\n".join(state_lines(bench.described))
    assert "awaiting_delivery" in text
    assert "vendor fast, price_micros 3,000,000, due_slot 1" in text


def test_figures_count_orders_and_payments(bench: Bench) -> None:
    bench.send(delivered("fast", order(bench).order_id), bid("k", work_samples=100, needs_preprocessing=True))
    bench.send(withdraw("k"))
    summary = summarise(Board.of("c", bench.ledger, bench.decisions))
    figures = summary.zones["z"].as_json()
    assert (figures["ordered"], figures["delivered"], figures["vendors_paid_micros"]) == (2, 1, 3_000_000)
    assert figures["welfare_difference_micros"]["undelivered"] == 3_000_000
    assert ("orders of pre-processing", "2, 1 delivered") in list(zone_rows(summary.zones["z"]))
