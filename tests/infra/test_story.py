"""A job's story and a watcher's board, folded from a cell's ledger and decisions."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from infra.figures.auction.figures import AuctionFigures
from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.text import time_s_of, written
from infra.views.figures import summary_rows
from infra.views.story import Story
from infra.views.tables import board_view
from infra.views.words import describe, happening
from schemas.auction.batches import SolvedPlan
from schemas.auction.evidence import JobReplanned, Plan
from schemas.auction.settings import TitanPolicy
from schemas.codec import InvalidRecordError
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected
from schemas.fleet import RunFinished, RunStarted
from schemas.jobs import JobSubmitted
from schemas.lora_commands import SlotAssigned
from schemas.solves import SolveRequested
from streams.cell.ledger_event import LedgerEvent
from streams.policies.auction.zone import AuctionZone
from tests.support.cells import (
    UNIT,
    Bench,
    bid,
    configuration,
    failed,
    finished,
    online,
    progressed,
    silent,
    solved,
    started,
    tick,
    withdraw,
    zone,
)
from tests.support.examples import examples
from tests.support.histories import recorded


@pytest.fixture
def bench() -> Bench:
    """Job j is trained to its end, job k is rejected, job l withdrawn."""
    bench = Bench.configured()
    bench.send(*[online(node) for node in ("a1", "a2", "b1")])
    (admitted,) = bench.send(bid())
    bench.send(bid("k", units=0.5), bid("l"), withdraw("l"), bid("j", units=1.0))
    nodes = dict(admitted.evidence.offer.plan.node_slots)
    for slot in range(5):
        bench.send(tick(slot))
        if slot in nodes:
            done = 50 * sorted(nodes).index(slot)
            end = finished if done == 150 else progressed
            bench.send(started(nodes[slot], slot, done), end(nodes[slot], slot, done + 50))
    return bench


def story(bench: Bench, job_id: str) -> Story:
    # Decisions first: the two topics keep no common order.
    told = Story(job_id)
    for decision in bench.decisions:
        told.fold_decision(decision)
    for entry in bench.ledger:
        told.fold_event(entry.offset, entry.envelope)
    return told


def test_first_loss_is_kept_when_decisions_come_first(bench: Bench):
    summary = summarise(board(bench))
    assert [(adapter.job_id, adapter.first_loss) for adapter in summary.adapters] == [("j", 1.0)]


def test_story_shows_wait_for_solver():
    bench = Bench.configured(zones=(zone(policy=TitanPolicy(kind="titan")),))
    bench.send(tick(0), bid("j"), bid("k"))
    (requested,) = bench.send(tick(0.6))
    bench.send(
        solved(requested, SolvedPlan(job_id="j", node_slots=tuple((slot, "a1") for slot in range(1, 5))))
    )
    told = story(bench, "j")
    waited, answered = told.chapters[1:3]
    assert list(waited.record.job_ids) == ["j"]
    assert [plan.job_id for plan in answered.record.solution.plans] == ["j"]
    assert told.state == "admitted"
    assert [type(chapter.record) for chapter in story(bench, "k").chapters] == [
        JobSubmitted,
        SolveRequested,
        JobRejected,
    ]
    lines = [line for chapter in told.chapters for line in describe(chapter.record)]
    assert "waits for a solver with the other bids of its slot" in lines
    assert "the solver (feasible) plans it in 4 slots" in lines
    assert "zone z asks a solver to schedule 2 bids together" in [happening(d) for d in bench.decisions]
    assert board(bench).jobs.by_id["k"].state == "rejected"


def board(bench: Bench) -> Board:
    seen = Board("c")
    for decision in bench.decisions:
        seen.fold_decision(decision)
    for entry in bench.ledger:
        seen.fold_event(entry)
    return seen


def board_of_events_first(bench: Bench) -> Board:
    return Board.of("c", bench.ledger, bench.decisions)


def test_reused_id_shows_job_of_winner():
    bench = Bench.configured()
    bench.send(
        bid(units=1.0, user="ann", work_samples=100), bid(user="ben"), bid(user="ann", work_samples=50)
    )
    for seen in (board(bench), board_of_events_first(bench)):
        job = seen.jobs.by_id["j"]
        assert (job.user, job.state) == ("ben", "admitted")
        assert job.submission.workload.work_samples == 200
        assert job.offered_micros == 50 * UNIT


def test_board_follows_failing_plans_like_cell():
    bench = Bench.configured()
    for event in recorded(random.Random(3), configuration(), bids=60)[1:]:
        bench.send(event)
    kinds = {type(decision.outcome) for decision in bench.decisions}
    assert {JobAdmitted, JobRejected, JobReplanned, JobRefunded, JobCompleted} <= kinds
    live = set(bench.described["jobs"])
    for seen in (board(bench), board_of_events_first(bench)):
        assert {job.job_id for job in seen.jobs.by_id.values() if not job.is_over} == live
        assert summarise(seen).part(AuctionFigures).replanned > 0


def test_story_follows_order_of_ledger(bench):
    told = story(bench, "j")
    kinds = [type(chapter.record) for chapter in told.chapters]
    assert told.state == "completed"
    assert kinds[:2] == [JobSubmitted, JobAdmitted]
    assert kinds[-2:] == [RunFinished, JobCompleted]
    assert kinds.count(SlotAssigned) == kinds.count(RunStarted) == 4


def test_slot_command_is_shown_without_other_jobs(bench):
    for chapter in story(bench, "j").chapters:
        if isinstance(chapter.record, SlotAssigned):
            assert [order.job_id for order in chapter.record.runs] == ["j"]


@pytest.mark.parametrize(("job_id", "state"), [("k", "rejected"), ("l", "withdrawn"), ("nobody", "unknown")])
def test_states(bench, job_id, state):
    assert story(bench, job_id).state == state


def test_second_bid_under_id_keeps_state(bench):
    told = story(bench, "j")
    assert [
        chapter.record.reason for chapter in told.chapters if isinstance(chapter.record, JobRejected)
    ] == ["duplicate_job"]
    assert told.state == "completed"


def test_board_is_independent_of_reading_order(bench):
    seen = board(bench)
    assert {job.job_id: job.state for job in seen.jobs.by_id.values()} == {
        "j": "completed",
        "k": "rejected",
        "l": "withdrawn",
    }
    job = seen.jobs.by_id["j"]
    assert (job.user, job.submission.workload.work_samples, job.samples_done) == ("u", 200, 200)
    assert (job.first_loss, job.loss) == (1.0, 0.5)
    assert job.offered_micros == 50_000_000
    assert job.nodes == set()


def test_bid_under_id_of_other_is_hidden():
    bench = Bench.configured()
    bench.send(bid("j1"))
    again = replace(bench.ledger[-1].envelope, event=bid("j2"))
    entry = LedgerEvent(len(bench.ledger), again)
    bench.ledger.append(entry)
    (ignored,) = bench.cell.handle(entry)
    bench.decisions.append(ignored)
    assert ignored.outcome.reason == "duplicate_event"
    assert list(board(bench).jobs.by_id) == ["j1"]


def test_report_of_unsubmitted_job_is_hidden(bench: Bench) -> None:
    bench.send(started("a1", 0, 50, "unheard-of"))
    assert set(board(bench).jobs.by_id) == {"j", "k", "l"}
    assert story(bench, "unheard-of").state == "unknown"


def test_board_has_revenue_welfare_and_proven_ratio(bench):
    seen = board(bench)
    paid = next(d.outcome for d in bench.decisions if isinstance(d.outcome, JobAdmitted)).payment_micros
    last = next(d.outcome for d in reversed(bench.decisions) if isinstance(d.outcome, JobCompleted))
    assert seen.jobs.revenue_micros == paid
    figures = summarise(seen).part(AuctionFigures)
    assert figures.realised_welfare_micros == bench.zone.auctioneer.welfare.realised_micros
    assert figures.proven_ratio == last.evidence.certificate.proven_ratio


def test_silent_node_is_shown_down_and_idle():
    bench = Bench.configured()
    bench.send(online("a1"), online("a2"), online("b1"), tick(0), tick(0.5))
    assert {node.status for node in board(bench).nodes.by_id.values()} == {"up"}
    bench.send(silent("a1"), silent("a2"), silent("b1"))
    assert {node.status for node in board(bench).nodes.by_id.values()} == {"down"}


def test_refund_reduces_revenue():
    bench = Bench.configured()
    (admitted,) = bench.send(bid())
    slot, node = admitted.evidence.offer.plan.node_slots[0]
    *_, refunded = bench.send(tick(slot), started(node, slot, 0), failed(node, slot, 0, permanent=True))
    seen = board(bench)
    assert 0 < refunded.refund_micros < admitted.payment_micros
    assert (seen.jobs.by_id["j"].state, seen.jobs.revenue_micros) == ("refunded", refunded.retained_micros)


def test_decision_with_invalid_id_is_refused(bench):
    forged = replace(next(d for d in bench.decisions if isinstance(d.outcome, JobAdmitted)), id="elsewhere")
    with pytest.raises(InvalidRecordError, match="elsewhere is not an id"):
        Story("j").fold_decision(forged)


def test_completed_job_is_shown_with_its_result():
    job = {
        "job_id": "j",
        "user": "u",
        "zone": "z",
        "reason": "work_done",
        "payment_micros": 0,
        "samples_done": 5,
    }
    assert describe(JobCompleted(**job, node=None)) == ["completed: 5 samples"]
    left = {"loss": 0.5, "adapter_path": "c/j", "adapter_digest": "0f"}
    assert describe(JobCompleted(**job, **left, node="a1")) == [
        "completed on a1: 5 samples, loss 0.5000",
        "adapter c/j, BLAKE2b 0f",
    ]


def test_result_of_plan_is_described():
    bench = Bench.configured()
    (admitted,) = bench.send(bid())
    node = admitted.evidence.offer.plan.node_slots[0][1]
    bench.send(tick(0), started(node, 0, 0, dataset_samples=999))
    bench.send(progressed(node, 0, 1, complete=False).model_copy(update={"memory_gib": 1.25}))
    bench.send(progressed(node, 0, 5, node_s=10.0))
    told = story(bench, "j")
    lines = [line for chapter in told.chapters for line in describe(chapter.record)]
    assert any(line.startswith("speed: 5 samples/s on fast (as declared, which the user") for line in lines)
    assert "memory: 2 GiB (as declared, which the user answers for)" in lines
    assert f"{node} starts run 0/j at 0 samples; its data hold 999 samples" in lines
    assert f"{node} is at 1 samples, loss 1.0000, after 0.0 s of its time and at most 1.25 GiB" in lines
    assert f"{node} is at 5 samples, loss 1.0000, after 10.0 s of its time, run complete" in lines
    assert any(line.startswith("refunded 1.5000, 0.5000 retained (slower_than_declared): ") for line in lines)
    (replanned,) = describe(
        JobReplanned(
            job_id="j",
            zone="z",
            reason="node_lost",
            first_slot=2,
            remaining_samples=0,
            plan=Plan(vendor=None, node_slots=(), samples=0),
            extra_operational_micros=-UNIT,
            evidence=admitted.evidence,
        )
    )
    assert replanned == "planned again (node_lost): its present runs suffice, no more slots are held"


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (1_795_276_945.6, "2026-11-21T16:02:25.600Z"),
        ("2026-11-21T16:02:27.231+00:00", "2026-11-21T16:02:27.231Z"),
        ("2026-11-21T17:02:27.231456+01:00", "2026-11-21T16:02:27.231Z"),
        ("2026-11-21T16:02:27", "2026-11-21T16:02:27.000Z"),
        ("0001-01-01T00:00:00+01:00", "0001-01-01T00:00:00+01:00"),
        ("noon", "noon"),
        (253_402_300_799.5, "9999-12-31T23:59:59.500Z"),
        (253_402_300_800.0, "after the year 9999"),
        (1e300, "after the year 9999"),
    ],
)
def test_every_time_is_written_alike(time, text):
    assert written(time) == text


def shown_times(*given: tuple[str | float | None, int]) -> list[str | float | None]:
    """Return the shown times of a job's story with these times and ledger offsets, where text is an
    event's."""
    bench = Bench.configured()
    bench.send(tick(0))
    bench.send(bid("j"))
    event, decision = bench.ledger[-1].envelope, bench.decisions[-1]
    story = Story("j")
    for index, (time, offset) in enumerate(given):
        if isinstance(time, str):
            story.fold_event(offset, replace(event, time=time))
        else:
            story.fold_decision(replace(decision, id=f"c-{offset}-{index}", time_s=time))
    return [chapter.time for chapter in story.chapters]


def test_decisions_between_ticks_follow_latest_event():
    told = shown_times(
        ("1970-01-01T00:00:21Z", 1),
        (20.0, 1),
        (20.0, 1),
        ("1970-01-01T00:00:23.500Z", 2),
        (20.0, 3),
        (25.0, 4),
    )
    assert told == ["1970-01-01T00:00:21Z", 21.0, 21.0, "1970-01-01T00:00:23.500Z", 23.5, 25.0]


def test_fast_sender_clock_delays_no_later_decision():
    ahead = "1970-01-01T01:00:00Z"
    assert shown_times((ahead, 1), (20.0, 1), (20.0, 2), (25.0, 3)) == [ahead, 3600.0, 3600.0, 25.0]


@pytest.mark.parametrize("written", ["", "yesterday", "1970-13-01T00:00:00Z"])
def test_what_is_no_time_puts_off_no_decision(written):
    assert shown_times((written, 1), (20.0, 1)) == [written, 20.0]


def test_decisions_before_the_first_tick_have_no_time():
    event = "1970-01-01T00:00:21Z"
    assert shown_times((event, 1), (None, 1), (20.0, 2)) == [event, None, 21.0]


@given(
    st.lists(st.tuples(st.floats(0.001, 30.0), st.sampled_from(["tick", "event", "decision"])), max_size=30)
)
@settings(max_examples=examples(200), deadline=None)
def test_story_is_in_time_order_with_equal_clocks(steps):
    now_s, clock_s, told = 0.0, 0.0, []
    for offset, (lasts_s, what) in enumerate(steps):
        now_s += lasts_s
        if what == "tick":
            clock_s = now_s
        else:
            told.append(
                (datetime.fromtimestamp(now_s, UTC).isoformat() if what == "event" else clock_s, offset)
            )
    times = [time_s_of(time) if isinstance(time, str) else time for time in shown_times(*told)]
    # Senders write microseconds.
    assert all(after >= before - 1e-6 for before, after in pairwise(times))


def test_faulted_event_is_shown_in_watch_and_story(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench.configured()
    bench.send(tick(0))
    monkeypatch.setattr(AuctionZone, "submitted", lambda *_: 1 / 0)
    (fault,) = bench.send(bid("a"))
    board, story = Board("c"), Story("a")
    for entry in bench.ledger:
        board.fold_event(entry)
        story.fold_event(entry.offset, entry.envelope)
    for decision in bench.decisions:
        board.fold_decision(decision)
        story.fold_decision(decision)
    line = "event e2 (millrace.job.submitted.v1) changed nothing: ZeroDivisionError in zone z, submitted"
    assert happening(bench.decisions[-1]).startswith(line)
    assert story.chapters[-1].record == fault
    assert describe(fault)[0].startswith(line)
    assert (board.faults, board.last_fault) == (1, fault)
    assert dict(summary_rows(summarise(board)))["events that faulted"] == "1"
    assert "1 events faulted, the last one e2 (millrace.job.submitted.v1)" in text_of(board_view(board, 20))


def test_unreadable_record_does_not_end_watch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AuctionFigures, "fold_outcome", lambda *_: 1 / 0)
    board = Board.of("c", bench.ledger, bench.decisions)
    assert board.jobs.by_id["j"].state == "completed", "all else is shown"
    assert board.omissions == len(bench.decisions)
    assert "ZeroDivisionError: division by zero" in text_of(board_view(board, 20))


def test_report_of_unknown_job_is_not_summarised() -> None:
    bench = Bench.configured()
    bench.send(online("a1"), tick(0), started("a1", 0, 0, job_id="nobody"))
    board = Board.of("c", bench.ledger, bench.decisions)
    assert summarise(board).jobs == 0


def text_of(view: RenderableType) -> str:
    """Return the output on a terminal of 200 columns."""
    console = Console(file=StringIO(), width=200)
    console.print(view)
    return console.file.getvalue()
