"""Order, duplicates, configuration and snapshots."""

import pytest

from schemas.codec import Envelope
from schemas.commands import RunDisowned
from schemas.decisions import CellAccepted, EventIgnored, JobAdmitted, JobRejected, JobWithdrawn
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.support.cells import (
    CheckedBench,
    ask,
    bid,
    configuration,
    node_seen,
    offline,
    online,
    started,
    tick,
    vendor,
    withdraw,
)


def test_first_event_configures_before_any_decision():
    bench = CheckedBench()
    refused, early, accepted, again = bench.send(
        bid(), node_seen("a1"), configuration(), configuration(slot_s=5.0)
    )
    assert isinstance(refused, JobRejected)
    assert refused.reason == "cell_not_configured"
    assert early.reason == "cell_not_configured"
    assert accepted == CellAccepted(reason="first_configuration", zones=("z",))
    assert again.reason == "cell_already_configured"


def test_a_repeated_event_id_changes_nothing(bench):
    bench.send(bid())
    before = bench.zone.state()
    entry = bench.ledger[-1]
    (decision,) = bench.cell.handle(type(entry)(len(bench.ledger), entry.envelope))
    assert isinstance(decision.outcome, EventIgnored)
    assert decision.outcome.reason == "duplicate_event"
    assert bench.zone.state() == before


def send_as(bench, id, *events):
    """Feed events that all bear the same id."""
    outcomes = []
    for event in events:
        entry = LedgerEvent(bench.cell.offset + 1, Envelope(id, "test", "", event))
        outcomes += [decision.outcome for decision in bench.cell.handle(entry)]
    return outcomes


USED_EARLY = {
    "a node's by a user": (withdraw("x"), offline("a1")),
    "a user's by another": (bid("j1", user="eve"), bid("j2", user="ada")),
    "a node's by another": (offline("a2"), offline("a1")),
    "a vendor's by a user": (withdraw("x"), vendor("slow", 1.0, 0.0)),
    "the clock's by a user": (withdraw("x"), tick(1)),
}


@pytest.mark.parametrize(("early", "event"), USED_EARLY.values(), ids=USED_EARLY.keys())
def test_event_id_of_one_writer_blocks_no_other(bench, early, event):
    outcomes = send_as(bench, "1", early, event)
    assert not [o for o in outcomes if isinstance(o, EventIgnored) and o.reason == "duplicate_event"]
    (repeated,) = send_as(bench, "1", event)
    assert repeated.reason == "duplicate_event"


def test_node_reports_despite_ids_used_by_user(bench):
    for number in range(50):
        send_as(bench, f"a1-{number}", withdraw("x", user="eve"))
    (down,) = send_as(bench, "a1-0", offline("a1"))
    (up,) = send_as(bench, "a1-1", node_seen("a1"))
    assert (down.status, up.status) == ("down", "up")


def test_flood_of_user_keeps_ids_of_others():
    bench = CheckedBench.configured(duplicate_window_events=80)
    send_as(bench, "ada-1", bid("j1", user="ada"))
    for number in range(500):
        send_as(bench, f"eve-{number}", withdraw("x", user="eve"))
    (repeated,) = send_as(bench, "ada-1", bid("j1", user="ada"))
    assert repeated.reason == "duplicate_event"


def test_rejected_job_id_is_free_for_others(bench):
    lost, refused, admitted = bench.send(
        bid("j", units=0.0, user="eve"), bid("j", user="eve"), bid("j", user="ada")
    )
    assert (lost.reason, refused.reason) == ("price_not_below_bid", "duplicate_job")
    assert isinstance(admitted, JobAdmitted)


def test_admitted_job_id_is_taken_for_all(bench):
    admitted, withdrawn, again, by_another = bench.send(
        bid("j", user="ada"), withdraw("j", user="ada"), bid("j", user="ada"), bid("j", user="bob")
    )
    assert (type(admitted), type(withdrawn)) == (JobAdmitted, JobWithdrawn)
    assert (again.reason, by_another.reason) == ("duplicate_job", "duplicate_job")


def test_a_snapshot_remembers_event_ids(bench):
    bench.send(bid())
    entry = bench.ledger[-1]
    twin = Cell.restore(bench.cell.snapshot())
    (decision,) = twin.handle(type(entry)(len(bench.ledger), entry.envelope))
    assert isinstance(decision.outcome, EventIgnored)
    assert decision.outcome.reason == "duplicate_event"


def test_the_duplicate_window_forgets_the_oldest_id():
    bench = CheckedBench.configured(duplicate_window_events=2)
    bench.send(bid("j1"), bid("j2"), bid("j3"))
    entry = bench.ledger[1]
    (decision,) = bench.cell.handle(type(entry)(len(bench.ledger), entry.envelope))
    assert not isinstance(decision.outcome, EventIgnored)


IGNORED = {
    "a clock that goes back": ([tick(3), tick(2)], "clock_went_back"),
    "a quote of an unknown vendor": ([vendor("stranger", 1.0, 0.0)], "unknown_vendor"),
    "a report from an unknown node": ([node_seen("a9")], "unknown_node"),
    "a report on an unknown job": ([started("a1", 0, 0)], "unknown_job"),
    "a report from a node without the job": (
        [bid(speed_samples_per_s={"slow": 5.0}), tick(0), started("a1", 0, 0)],
        "stale_report",
    ),
}


@pytest.mark.parametrize(("events", "reason"), IGNORED.values(), ids=IGNORED.keys())
def test_it_ignores(bench, events, reason):
    outcomes = [each for each in bench.send(*events) if not isinstance(each, RunDisowned)]
    outcome = outcomes[-1]
    assert isinstance(outcome, EventIgnored)
    assert outcome.reason == reason


def test_bid_under_live_id_is_duplicate(bench):
    bench.send(tick(0), bid("j", units=90.0))
    by_another = bid("j", user="mallory", zone="nowhere")
    (refused,) = bench.send(by_another)
    assert (type(refused), refused.reason) == (JobRejected, "duplicate_job")


def test_snapshot_continues_unchanged(bench):
    bench.send(online("a1"), vendor("slow", 1.0, 20.0), bid("j1"), tick(0), bid("j2", units=9.0))
    twin = Cell.restore(bench.cell.snapshot())
    assert twin.snapshot() == bench.cell.snapshot()
    ahead = CheckedBench(cell=twin, ledger=list(bench.ledger))
    events = [bid("j3", needs_preprocessing=True), tick(1), tick(2), offline("a1"), bid("j1"), ask()]
    bench.send(*events)
    ahead.send(*events)
    assert [d.canonical for d in ahead.decisions] == [
        d.canonical for d in bench.decisions[-len(ahead.decisions) :]
    ]
    assert twin.chain == bench.cell.chain


def test_a_snapshot_of_another_version_is_refused(bench, monkeypatch):
    snapshot = bench.cell.snapshot()
    monkeypatch.setattr("streams.cell.state_machine.SNAPSHOT_VERSION", 99)
    with pytest.raises(ValueError, match="delete the snapshot"):
        Cell.restore(snapshot)


def test_events_do_not_go_back(bench):
    with pytest.raises(ValueError, match="offset 0 comes after 0"):
        bench.cell.handle(bench.ledger[0])
