"""Order, duplicates, configuration and snapshots."""

import pytest

from schemas.decisions import (
    CellAccepted,
    EventIgnored,
    JobRejected,
)
from streams.cell import Cell
from tests.support.cells import (
    CheckedBench,
    ask,
    bid,
    configuration,
    heard,
    offline,
    online,
    started,
    tick,
    vendor,
)


def test_the_first_event_configures_and_nothing_is_decided_before():
    bench = CheckedBench()
    refused, early, accepted, again = bench.send(
        bid(), heard("a1"), configuration(), configuration(slot_s=5.0)
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
    "a report from an unknown node": ([heard("a9")], "unknown_node"),
    "a report on an unknown job": ([started("a1", 0, 0)], "unknown_job"),
    "a report from a node without the job": (
        [bid(speed_samples_per_s={"slow": 5.0}), tick(0), started("a1", 0, 0)],
        "stale_report",
    ),
}


@pytest.mark.parametrize(("events", "reason"), IGNORED.values(), ids=IGNORED.keys())
def test_it_ignores(bench, events, reason):
    outcome = bench.send(*events)[-1]
    assert isinstance(outcome, EventIgnored)
    assert outcome.reason == reason


def test_a_snapshot_goes_on_as_if_nothing_had_happened(bench):
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
    monkeypatch.setattr("streams.cell.SNAPSHOT_VERSION", 99)
    with pytest.raises(ValueError, match="delete the snapshot"):
        Cell.restore(snapshot)


def test_events_do_not_go_back(bench):
    with pytest.raises(ValueError, match="offset 0 comes after 0"):
        bench.cell.handle(bench.ledger[0])
