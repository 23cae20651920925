"""Boards of long logs: what they keep, and what they count."""

import gc
import hashlib
import pickle
from collections.abc import Iterable, Iterator

import pytest

from infra.figures.board import Board
from infra.figures.jobs import Jobs, JobTimeline, ReportedRun
from infra.figures.summary import summarise
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.changes import NodeRegistered, NodeRetired
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import EventIgnored, JobAdmitted, JobCompleted, JobRejected, NodeMoved
from schemas.elastic.commands import Member
from schemas.elastic.outcomes import JobResized, QueuedJob, ResizeReason
from schemas.fleet import RunFinished, RunStarted
from schemas.jobs import JobSubmitted
from streams.cell.ledger_event import LedgerEvent
from tests.support.elastic import elastic_cell, submit

KEPT = 100
CHAIN = hashlib.blake2b(digest_size=32).hexdigest()


def admitted(job: JobSubmitted) -> JobAdmitted:
    place = QueuedJob(jobs_waiting=0, running_s=60.0)
    return JobAdmitted(
        job_id=job.job_id, user=job.user, zone=job.zone, reason="queued", payment_micros=1, evidence=place
    )


def resized(job: JobSubmitted, reason: ResizeReason, workers: int, before: int = 0) -> JobResized:
    return JobResized(
        zone=job.zone,
        job_id=job.job_id,
        generation=1,
        reason=reason,
        workers=workers,
        workers_before=before,
        servers=(Member(node="s0", workers=workers),),
        pool="training",
        flexible_pool=None,
        samples_done=0,
        remaining_s=60.0,
    )


def completed(job: JobSubmitted) -> JobCompleted:
    return JobCompleted(
        job_id=job.job_id,
        user=job.user,
        zone=job.zone,
        reason="work_done",
        node="s0",
        payment_micros=1,
        samples_done=100,
    )


def rejected(job: JobSubmitted) -> JobRejected:
    return JobRejected(job_id=job.job_id, user=job.user, zone=job.zone, reason="cell_full")


def log(jobs: int) -> Iterator[tuple[str, Event, list[Outcome]]]:
    """Jobs that come every ten seconds, are scaled out and are done after five, every tenth of them
    rejected, and each event of every fifth sent twice: events with their ids, and decisions about them."""
    yield "configured", elastic_cell(1), []
    for number in range(jobs):
        job = submit(f"j{number}", 600.0)
        assert isinstance(job, JobSubmitted)
        run = {"cell": "c", "node": "s0", "run_id": f"1/j{number}", "job_id": job.job_id}
        yield f"t{number}", ClockTicked(cell="c", time_s=10.0 * number), []
        if number % 10 == 0:
            yield f"e{number}", job, [rejected(job)]
            continue
        yield f"e{number}", job, [admitted(job), resized(job, "started", 2)]
        if number % 5 == 1:
            yield f"e{number}", job, [EventIgnored(reason="duplicate_event")]
        yield f"s{number}", RunStarted(**run, samples_done=0), []
        yield (
            f"h{number}",
            ClockTicked(cell="c", time_s=10.0 * number + 5.0),
            [resized(job, "scaled_out", 3, 2)],
        )
        yield f"f{number}", RunFinished(**run, samples_done=100), [completed(job)]


def folded(jobs: int, kept: int | None) -> Board:
    return board_of(log(jobs), kept)


def board_of(records: Iterable[tuple[str, Event, list[Outcome]]], kept: int | None) -> Board:
    board = Board("c", Jobs(kept))
    time_s: float | None = None
    for offset, (id, event, outcomes) in enumerate(records):
        time_s = event.time_s if isinstance(event, ClockTicked) else time_s
        board.fold_event(LedgerEvent(offset, Envelope(id, "/test", "", event)))
        for index, outcome in enumerate(outcomes):
            board.fold_decision(Decision(f"c-{offset}-{index}", "c", id, time_s, outcome, CHAIN))
    assert not board.omissions, board.last_omission
    return board


def kept_objects() -> int:
    gc.collect()
    kinds = JobTimeline, ReportedRun, Event, Outcome, Envelope, Decision
    return sum(isinstance(each, kinds) and not isinstance(each, CellConfigured) for each in gc.get_objects())


@pytest.mark.parametrize("jobs", [1_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_long_log_leaves_bounded_objects(jobs: int) -> None:
    before = kept_objects()
    board = folded(jobs, KEPT)
    assert len(board.jobs.by_id) == KEPT
    assert kept_objects() - before < 10 * KEPT
    summary = summarise(board)
    assert (summary.jobs, summary.admitted, summary.completed) == (jobs, jobs * 9 // 10, jobs * 9 // 10)
    assert summary.rejected == {"cell_full": jobs // 10}
    zone = summary.zones["z"].as_json()
    assert (zone["jobs"], zone["completed"], zone["resizes"]) == (jobs, jobs * 9 // 10, jobs * 9 // 10)
    assert summary.revenue_micros == jobs * 9 // 10


def test_counts_match_a_board_that_keeps_all() -> None:
    some, all = folded(1_000, KEPT), folded(1_000, None)
    assert len(all.jobs.by_id) == 1_000
    assert some.jobs.states() == all.jobs.states()
    one, other = (summarise(board).as_json() for board in (some, all))
    for figures in (one, other):
        del figures["adapters"]
    assert one == other, "the times of all jobs are equal"


def test_the_latest_jobs_are_kept() -> None:
    board = folded(1_000, KEPT)
    assert list(board.jobs.by_id) == [f"j{number}" for number in range(900, 1_000)]


def generations(count: int) -> Iterator[tuple[str, Event, list[Outcome]]]:
    """A job with so many generations, while as many other nodes join the zone and leave the cell."""
    yield "configured", elastic_cell(1), []
    job = submit("endless", 600.0)
    assert isinstance(job, JobSubmitted)
    yield "e", job, [admitted(job), resized(job, "started", 1)]
    for number in range(count):
        node, run = f"n{number}", {"cell": "c", "node": "s0", "run_id": f"{number}/endless"}
        yield f"t{number}", ClockTicked(cell="c", time_s=10.0 * number), []
        yield f"s{number}", RunStarted(**run, job_id="endless", samples_done=0), []
        registered = NodeRegistered(cell="c", node=node, zone="z", gpu_type="V100", tariff="flat")
        moved = {"node": node, "reason": "registered"}
        yield f"j{number}", registered, [NodeMoved(**moved, from_zone=None, to_zone="z")]
        retired = NodeRetired(cell="c", node=node)
        yield f"r{number}", retired, [NodeMoved(node=node, reason="retired", from_zone="z", to_zone=None)]


def test_endless_job_and_passing_nodes_are_bounded() -> None:
    small, large = (len(pickle.dumps(board_of(generations(count), KEPT))) for count in (3_000, 6_000))
    assert large < 1.02 * small
