"""Messages of nodes: decisions do not repeat them, and views join them to the decisions."""

from collections.abc import Iterator

import pytest

from infra.commands.watch import lines
from infra.figures.board import Board, Boards
from infra.figures.messages import KEPT
from infra.views.story import Story
from infra.views.words import describe, happening
from schemas.base import Event
from schemas.codec import Decision, Envelope
from schemas.decisions import JobRefunded
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.fleet import CommandRefused, NodeOffline, RefusedRun
from streams.cell.ledger_event import LedgerEvent
from tests.support import elastic, moe
from tests.support.cells import Bench, bid, failed, failed_order, offline, online, refused, tick
from tests.support.merging_script import Script, share

TEXT = "no space on disk 7"


def board_of(bench: Bench) -> Board:
    return Board.of("c", bench.ledger, bench.decisions)


def last_line(bench: Bench) -> str | None:
    """The line of a watcher about the last decision."""
    decision = bench.decisions[-1]
    return happening(decision, message=board_of(bench).messages.of(decision))


def left(node: str) -> NodeOffline:
    return offline(node).model_copy(update={"reason": TEXT})


def refusal(node: str, run_id: str, job_id: str) -> CommandRefused:
    runs = (RefusedRun(run_id=run_id, job_id=job_id),)
    return refused(node).model_copy(update={"detail": TEXT, "runs": runs})


def auction() -> Bench:
    bench = Bench.configured()
    bench.send(bid(), bid("k"), tick(0), online("a1"), refusal("a1", "0/k", "k"))
    bench.send(failed("a1", 0, 0, permanent=True).model_copy(update={"error": TEXT}), left("a1"))
    bench.send(failed_order("fast", "0/j", detail=TEXT))
    return bench


def elastic_zone() -> Bench:
    bench = Bench()
    bench.send(elastic.elastic_cell(), elastic.submit("a"), elastic.submit("b"))
    orders = [each for each in bench.send(elastic.tick(60.0)) if isinstance(each, WorkersAssigned)]
    bench.send(elastic.failed(orders[0], permanent=True, error=TEXT))
    bench.send(refusal(orders[1].node, orders[1].run_id, orders[1].job_id), left(orders[1].node))
    return bench


def experts_zone() -> Bench:
    bench = Bench()
    bench.send(moe.moe_cell(), moe.submit("a", moe.training()), moe.submit("b", moe.training()))
    orders = [each for each in bench.send(moe.tick(5.0)) if isinstance(each, moe.RanksAssigned)]
    bench.send(moe.failed(orders[0], permanent=True, error=TEXT))
    bench.send(refusal(orders[-1].node, orders[-1].run_id, orders[-1].job_id), left(orders[-1].node))
    return bench


def merging_zone() -> Bench:
    script = Script()
    script.ready("a")
    script.plan(share("a"))
    script.send(script.failed("a", permanent=True).model_copy(update={"error": TEXT}))
    script.send(left("n0"))
    return script.bench


@pytest.mark.parametrize("history", [auction, elastic_zone, experts_zone, merging_zone])
def test_no_decision_repeats_the_text_of_an_event(history) -> None:
    bench = history()
    assert any(TEXT.encode() in entry.envelope.canonical for entry in bench.ledger)
    assert any(getattr(decision.outcome, "reason", "") == "run_failed" for decision in bench.decisions)
    assert not any(TEXT.encode() in decision.canonical for decision in bench.decisions)


def test_watchers_see_why_a_node_left() -> None:
    bench = Bench.configured()
    bench.send(tick(0), online("a1"))
    bench.send(offline("a1").model_copy(update={"reason": "the disk is full\x1b[2J"}))
    assert last_line(bench) == r"a1 is down (offline): the disk is full\x1b[2J"


def test_watchers_see_why_a_run_failed() -> None:
    bench = Bench.configured()
    bench.send(bid(), tick(0), failed("a1", 0, 0, permanent=True))
    assert last_line(bench) == "j refunded 1.5000 (run_failed): boom"


@pytest.mark.parametrize("more", [[], [refusal("a1", "0/j", "j")], [left("a2"), left("a2")]])
def test_first_message_of_a_run_counts(more: list[Event]) -> None:
    bench = Bench.configured()
    bench.send(bid(), online("a1"), tick(0))
    bench.send(failed("a1", 0, 0, permanent=True))
    refunded = bench.decisions[-1]
    bench.send(*more)
    assert board_of(bench).messages.of(refunded) == "boom"


def test_late_refund_has_the_message_of_its_failure() -> None:
    bench = Bench()
    bench.send(elastic.elastic_cell(), elastic.submit("j", workers=(6, 6)))
    orders = [each for each in bench.send(elastic.tick(60.0)) if isinstance(each, WorkersAssigned)]
    outcomes = bench.send(elastic.failed(orders[0], permanent=True, error=TEXT))
    (waits,) = (each for each in outcomes if isinstance(each, WorkersReleased))
    assert not any(isinstance(each, JobRefunded) for each in outcomes)
    bench.send(elastic.gone(waits))
    assert isinstance(bench.decisions[-1].outcome, JobRefunded)
    assert last_line(bench) == f"j refunded 0.0000 (run_failed): {TEXT}"


def test_a_line_waits_for_its_event() -> None:
    bench, boards = Bench.configured(), Boards()
    bench.send(tick(0), online("a1"), left("a1"))
    *earlier, last = bench.ledger
    read: list[LedgerEvent | Decision] = [*earlier, *bench.decisions, last]

    def records() -> Iterator[Envelope | Decision]:
        for record in read:
            boards.fold(record)
            yield record.envelope if isinstance(record, LedgerEvent) else record

    shown = list(lines(records(), boards, None))
    assert shown[-1] == f"00:16:40  c  a1 is down (offline): {TEXT}"
    assert not list(lines(records(), boards, "another"))


def test_refusals_are_part_of_a_story() -> None:
    bench, told = Bench.configured(), Story("j")
    bench.send(bid(), tick(0), refusal("a1", "0/j", "j"), refusal("a1", "0/k", "k"))
    for entry in bench.ledger:
        told.fold_event(entry.offset, entry.envelope)
    shown = [describe(chapter.record)[0] for chapter in told.chapters]
    assert [line for line in shown if "refuses" in line] == [
        f"a1 refuses command c-7-0 (runner_missing): {TEXT}"
    ]


def test_old_messages_are_forgotten() -> None:
    bench = Bench.configured()
    bench.send(online("a1"))
    for _ in range(KEPT + 2):
        bench.send(left("a1"), online("a1"))
    messages = board_of(bench).messages
    downs = [each for each in bench.decisions if getattr(each.outcome, "reason", "") == "offline"]
    assert [messages.of(each) for each in downs[:2]] == ["", ""]
    assert {messages.of(each) for each in downs[2:]} == {TEXT}
