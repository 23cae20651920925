"""Order in which a board folds the two topics of a log, and submissions that are repeated."""

from dataclasses import replace

import pytest

from infra.figures.board import Board
from infra.figures.summary import summarise
from streams.cell.ledger_event import LedgerEvent
from tests.support.cells import Bench, bid, online, tick


@pytest.fixture
def bench() -> Bench:
    bench = Bench.configured()
    bench.send(*(online(node) for node in ("a1", "a2", "b1")), tick(0))
    return bench


def repeated(bench: Bench) -> None:
    """Send the last event again, under the same id."""
    entry = LedgerEvent(len(bench.ledger), replace(bench.ledger[-1].envelope))
    bench.ledger.append(entry)
    bench.decisions.extend(bench.cell.handle(entry))


def orders(bench: Bench) -> list[Board]:
    """Boards that read all events first, all decisions first, or each event with its decisions."""
    events_first = Board.of("c", bench.ledger, bench.decisions)
    decisions_first, in_order = Board("c"), Board("c")
    for decision in bench.decisions:
        decisions_first.fold_decision(decision)
    for entry in bench.ledger:
        decisions_first.fold_event(entry)
        decisions = [each for each in bench.decisions if each.place[0] == entry.offset]
        in_order.fold_event(entry)
        for decision in decisions:
            in_order.fold_decision(decision)
    return [events_first, decisions_first, in_order]


def test_a_decision_waits_for_its_event(bench: Bench) -> None:
    bench.send(bid("j"))
    board = Board("c")
    for entry in bench.ledger[:-1]:
        board.fold_event(entry)
    for decision in bench.decisions:
        board.fold_decision(decision)
    assert (board.waiting, "j" in board.jobs.by_id) == (1, False)
    board.fold_event(bench.ledger[-1])
    assert (board.waiting, board.jobs.by_id["j"].state) == (0, "admitted")


def test_repeated_event_does_not_change_its_job(bench: Bench) -> None:
    bench.send(bid("poor", units=0.01))
    repeated(bench)
    bench.send(bid("j"))
    repeated(bench)
    for board in orders(bench):
        assert {job.job_id: job.state for job in board.jobs.by_id.values()} == {
            "poor": "rejected",
            "j": "admitted",
        }
        assert (summarise(board).jobs, summarise(board).admitted) == (2, 1)


def test_a_rejected_id_may_be_used_again(bench: Bench) -> None:
    bench.send(bid("j", units=0.01), bid("j", user="ben"))
    for board in orders(bench):
        job = board.jobs.by_id["j"]
        assert (job.state, job.offered_micros) == ("admitted", 50_000_000)
        assert dict(board.jobs.states()) == {"rejected": 1, "admitted": 1}


def test_late_reports_do_not_restore_forgotten_jobs(bench: Bench) -> None:
    board = Board("c")
    board.jobs.kept = 0
    bench.send(bid("poor", units=0.01))
    repeated(bench)
    for entry in bench.ledger:
        board.fold_event(entry)
    for decision in bench.decisions:
        board.fold_decision(decision)
    assert not board.jobs.by_id
