"""Decisions of the round-robin policy, in a process that has it installed separately."""

import itertools
import math
from collections.abc import Iterator
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.event_files import EntriesFileError, read_jobs
from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.views.figures import zone_rows
from infra.views.story import Story
from infra.views.tables import board_view
from infra.views.words import describe, happening
from infra.workloads.drawing import draw_jobs
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import BidTerms
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, decode_decision, decode_stored_event
from schemas.commands import Command
from schemas.decisions import EventIgnored, JobAdmitted, JobCompleted, JobRejected, JobWithdrawn
from schemas.fleet import NodeOnline, RunFinished, RunProgressed
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.solves import SolveFinished, SolveRequested
from streams.cell.live_bytes import job_bytes
from streams.cell.state_machine import Cell
from streams.replay.replay import DecisionRecord, verify
from tests.round_robin.kind import CountWorkload, QueueTerms, RoundRobinPolicy
from tests.round_robin.solve import shortest_first
from tests.round_robin.virtual import VirtualCounting
from tests.round_robin.zone import PLACE_BYTES
from tests.support.boards import board_of
from tests.support.cells import Bench, configuration, offline, tick, withdraw, workload, zone
from tests.support.counting_commands import CountCancelled, CountOrdered

ZONE = zone(policy=RoundRobinPolicy(), nodes=zone().nodes[:2])


def cell() -> CellConfigured:
    return configuration(zones=(ZONE,))


def submitted(job_id: str, goal: int = 20, **changes: Any) -> JobSubmitted:
    fields: dict[str, Any] = {"workload": CountWorkload(goal=goal), "terms": QueueTerms(), **changes}
    return JobSubmitted(cell="c", job_id=job_id, user="u", zone="z", **fields)


def finished(order: CountOrdered) -> RunFinished:
    return RunFinished(
        cell="c",
        node=order.node,
        run_id=order.run_id,
        job_id=order.job_id,
        samples_done=order.goal,
    )


def orders(outcomes: list[Outcome]) -> list[CountOrdered]:
    return [outcome for outcome in outcomes if isinstance(outcome, CountOrdered)]


@pytest.fixture
def bench() -> Bench:
    return Bench.configured(zones=(ZONE,))


def test_jobs_take_turns_until_done(bench: Bench) -> None:
    first = orders(bench.send(*(submitted(job_id) for job_id in "abc")))
    assert [(order.node, order.job_id, order.goal) for order in first] == [("a1", "a", 10), ("a2", "b", 10)]
    (third,) = orders(bench.send(finished(first[0])))
    assert (third.node, third.job_id) == ("a1", "c"), "it waited while the others had their turns"
    (again,) = orders(bench.send(finished(first[1])))
    assert (again.job_id, again.start, again.goal) == ("a", 10, 20)
    completed, *rest = bench.send(finished(again))
    assert isinstance(completed, JobCompleted)
    assert (completed.job_id, completed.samples_done, completed.payment_micros) == ("a", 20, 0)
    assert [order.job_id for order in orders(rest)] == ["b"]


def test_job_shows_number_before_it(bench: Bench) -> None:
    admitted = [o for o in bench.send(*(submitted(id) for id in "abcd")) if isinstance(o, JobAdmitted)]
    assert [outcome.evidence.ahead for outcome in admitted] == [0, 0, 0, 1]
    assert decode_decision(bench.decisions[-1].canonical).outcome == bench.decisions[-1].outcome


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workload": workload()}, "workload_not_supported"),
        ({"terms": BidTerms(bid_micros=1, deadline_s=1e9)}, "terms_not_supported"),
    ],
)
def test_unsupported_job_is_rejected_by_name(bench: Bench, changes: dict[str, Any], reason: str) -> None:
    (rejected,) = bench.send(submitted("a", **changes))
    assert (type(rejected), rejected.reason) == (JobRejected, reason)
    assert orders(bench.send(submitted("b"))), "and the next one served"


def test_full_cell_rejects_until_job_ends(bench: Bench) -> None:
    live = bench.cell.jobs.live_bytes
    limit = bench.cell.configuration.live_jobs_bytes
    bench.send(submitted("a"))
    live.add(limit * 7 // 8 - live.total)
    (rejected,) = bench.send(submitted("b"))
    assert (rejected.reason, rejected.facts["case"]) == ("cell_full", "live_jobs")
    live.add(limit - live.total)
    (refused,) = bench.send(submitted("c"))
    assert (refused.reason, refused.evidence) == ("cell_full", None)
    before = live.total
    bench.send(withdraw("a"))
    assert before - live.total == PLACE_BYTES + job_bytes(CountWorkload(goal=20), QueueTerms())


def test_quote_is_refused(bench: Bench) -> None:
    asked = JobQuoteRequested.model_construct(
        cell="c", quote_id="q", user="u", zone="z", workload=CountWorkload(goal=1), terms=QueueTerms()
    )
    (quoted,) = bench.send(asked)
    assert quoted.reason == "terms_not_supported"


def test_a_node_without_the_runner_gets_no_job(bench: Bench) -> None:
    unfit = NodeOnline(cell="c", node="a1", base_model="tiny", runners=("lora",))
    ignored, down = bench.send(unfit)
    assert (ignored.reason, down.status) == ("runner_missing", "down")
    assert ignored.facts == {"node": "a1", "policy": "round_robin", "runners": ("counting",)}
    (order,) = orders(bench.send(submitted("a")))
    assert order.node == "a2"


def test_job_of_lost_node_resumes_from_report(bench: Bench) -> None:
    first, second = orders(bench.send(submitted("a"), submitted("b"), submitted("c")))
    told = RunProgressed(
        cell="c",
        node="a1",
        run_id=first.run_id,
        job_id="a",
        samples_done=4,
        node_s=0.0,
        complete=False,
    )
    assert orders(bench.send(told, offline("a1"))) == []
    (moved,) = orders(bench.send(finished(second)))
    assert (moved.node, moved.job_id, moved.start) == ("a2", "a", 4)
    up, started, stale = bench.send(finished(first))
    assert (up.status, started.job_id) == ("up", "c"), "the report itself says that the node is back"
    assert (type(stale), stale.reason) == (EventIgnored, "stale_report")


def test_withdrawn_job_ends_and_next_starts(bench: Bench) -> None:
    bench.send(submitted("a"), submitted("b"), submitted("c"))
    cancelled, withdrawn, started = bench.send(withdraw("a"))
    assert (type(cancelled), cancelled.node) == (CountCancelled, "a1")
    assert isinstance(withdrawn, JobWithdrawn)
    assert (started.job_id, started.node) == ("c", "a1")
    (duplicate,) = bench.send(submitted("a"))
    assert duplicate.reason == "duplicate_job"


def test_a_solver_puts_the_queue_in_order(bench: Bench) -> None:
    bench.send(*(submitted(id, goal) for id, goal in (("a", 9), ("b", 9), ("c", 900), ("d", 5))))
    (asked,) = bench.send(tick(0))
    assert isinstance(asked, SolveRequested)
    assert asked.problem.left_samples == {"c": 900, "d": 5}
    answer = SolveFinished(
        cell="c",
        zone="z",
        request_id=asked.request_id,
        solution=shortest_first(asked.problem, 1.0),
        solve_s=0.1,
    )
    assert bench.send(answer) == []
    (next_order, *_) = orders(bench.send(finished(orders([d.outcome for d in bench.decisions])[0])))
    assert next_order.job_id == "d"


GOALS = [7 * number + 5 for number in range(9)]
TURNS = sum(math.ceil(goal / RoundRobinPolicy().turn_samples) for goal in GOALS)


def simulated() -> tuple[list[Any], list[Any]]:
    jobs = [
        TimedEvent(cell().epoch_s + 3 * number, submitted(f"j{number}", goal))
        for number, goal in enumerate(GOALS)
    ]
    run = Simulation(cell(), jobs, solve_s=2.0).run()
    return run.ledger, run.decisions


def test_simulation_runs_to_end_with_valid_log() -> None:
    ledger, decisions = simulated()
    completed = [d.outcome for d in decisions if isinstance(d.outcome, JobCompleted)]
    assert sorted(outcome.job_id for outcome in completed) == [f"j{number}" for number in range(9)]
    answers = [entry for entry in ledger if isinstance(entry.envelope.event, SolveFinished)]
    assert answers, "a solver was asked, and took its time"
    records = [DecisionRecord(decision.canonical, "log") for decision in decisions]
    verdict = verify(ledger, records)
    assert verdict.ok
    assert verdict.decisions == len(decisions)


def test_jobs_are_drawn_and_measured_by_the_policy() -> None:
    drawn = draw_jobs(cell(), 1, jobs=5, span_s=60.0, options={"largest_goal": "12"})
    assert draw_jobs(cell(), 1, jobs=5, span_s=60.0, options={"largest_goal": "12"}) == drawn
    assert max(timed.event.workload.goal for timed in drawn) <= 12
    figures = board_of(Simulation(cell(), drawn)).zones["z"]
    waits = figures.tables()["waits"]
    assert len(waits) == 5
    assert figures.as_json()["longest_wait_s"] == max(row["waited_s"] for row in waits)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> JobSubmitted:
    """A job that counts until it is withdrawn."""
    is_no_service = property(lambda workload: workload.goal < 10**6)
    monkeypatch.setattr(CountWorkload, "ends_by_itself", is_no_service)
    return submitted("service", goal=10**6)


class EndlessCounting(VirtualCounting):
    """Reports every second until the job is cancelled, whatever its limit."""

    def __init__(self, cell: str, pace: float) -> None:
        super().__init__(cell, pace)
        self.cancelled: set[str] = set()

    def carry_out(
        self, command: Command, time_s: float, until_s: float = math.inf
    ) -> Iterator[tuple[float, Event]]:
        if isinstance(command, CountCancelled):
            self.cancelled.add(command.job_id)
        if isinstance(command, CountOrdered):
            run = {"cell": "c", "node": command.node, "run_id": command.run_id, "job_id": command.job_id}
            for done in takewhile(lambda _: command.job_id not in self.cancelled, itertools.count()):
                report = RunProgressed(**run, samples_done=done, loss=0.0, node_s=1.0, complete=False)
                yield time_s + done, report


def run_of(*inputs: tuple[float, Event]) -> SimulatedRun:
    return Simulation(cell(), [TimedEvent(cell().epoch_s + at_s, event) for at_s, event in inputs]).run()


def end_of(run: SimulatedRun) -> float:
    """When the last tick was, in seconds from the epoch."""
    ticks = [e.envelope.event for e in run.ledger if isinstance(e.envelope.event, ClockTicked)]
    return ticks[-1].time_s - cell().epoch_s


def test_simulation_waits_for_jobs_not_services(service: JobSubmitted) -> None:
    run = run_of((1, service), (2, submitted("job", goal=45)))
    turns = [order.goal for order in orders([d.outcome for d in run.decisions]) if order.job_id == "service"]
    assert turns == [10, 20, 30, 40, 50]
    (completed,) = [d.outcome for d in run.decisions if isinstance(d.outcome, JobCompleted)]
    assert completed.job_id == "job"
    assert 47 <= end_of(run) < 50


def test_runner_may_report_until_withdrawal(service: JobSubmitted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.round_robin.virtual.VirtualCounting", EndlessCounting)
    run = run_of((1, service), (61, withdraw("another")))
    assert end_of(run) == 62, "its reports keep nothing going"
    reports = [e.envelope.event for e in run.ledger if isinstance(e.envelope.event, RunProgressed)]
    assert [report.samples_done for report in reports] == list(range(62))
    run = run_of((1, service), (61, withdraw("service")), (100, withdraw("another")))
    reports = [e.envelope.event for e in run.ledger if isinstance(e.envelope.event, RunProgressed)]
    assert len(reports) == 62, "one was on its way when the job was withdrawn"


def test_endless_job_is_given_up_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.simulation.simulator._LONGEST_WAIT_S", 86_400.0)
    monkeypatch.setattr("tests.round_robin.virtual.VirtualCounting.carry_out", lambda *_: iter(()))
    simulation = Simulation(cell(), [TimedEvent(cell().epoch_s + 1, submitted("stuck"))])
    run = simulation.run()
    assert simulation.given_up == "1 days after the last input 1 of the jobs are not over, such as stuck"
    assert any(isinstance(decision.outcome, JobAdmitted) for decision in run.decisions)
    assert not any(isinstance(decision.outcome, JobCompleted) for decision in run.decisions)


def test_only_terms_have_other_names_in_files(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    for name in ("bid", "deadline_in_s"):
        terms = f"{{kind: queue, {name}: soon}}"
        file.write_text(f"{{user: u, zone: z, workload: {{kind: count, goal: 3}}, terms: {terms}}}")
        with pytest.raises(EntriesFileError, match=rf"terms.queue.{name}: Extra inputs"):
            read_jobs(str(file), 0.0, "c")


def test_cell_resumes_from_any_snapshot() -> None:
    ledger, decisions = simulated()
    folded = Cell("c")
    canonical = []
    for entry in ledger:
        canonical += [decision.canonical for decision in folded.handle(entry)]
        folded = Cell.restore(folded.snapshot())
    assert canonical == [decision.canonical for decision in decisions]


def test_events_survive_the_way_through_the_ledger() -> None:
    for entry in simulated()[0]:
        stored = decode_stored_event(entry.envelope.value, entry.envelope.headers())
        assert stored.event == entry.envelope.event


def seen() -> tuple[Board, list[Decision]]:
    ledger, decisions = simulated()
    return Board.of("c", ledger, decisions), decisions


def test_watch_shows_jobs_and_figures() -> None:
    board, decisions = seen()
    job = board.jobs.by_id["j3"]
    assert (job.state, job.samples_done) == ("completed", 26)
    screen = Console(file=StringIO(), width=200)
    screen.print(board_view(board, 10))
    shown = screen.file.getvalue()
    assert "cell c: 9 jobs, 9 completed, revenue 0.0000" in shown
    assert f"zone z: {TURNS} turns" in shown
    assert "turns" in next(line for line in shown.splitlines() if "offers" in line), "of each job, too"
    assert "26/26" in shown
    assert "j3 completed on a2: 26 samples" in map(happening, decisions)
    lines = [line for line in map(happening, decisions) if line]
    assert "j3 admitted (queued): pays 0.0000" in lines, "said in general terms"
    assert "j1 has a turn on a2, from 0 to 10" in lines, "said by its view"


def test_story_shows_turns_and_solver() -> None:
    ledger, decisions = simulated()
    story = Story("j3")
    for entry in ledger:
        story.fold_event(entry.offset, entry.envelope)
    for decision in decisions:
        story.fold_decision(decision)
    told = [line for chapter in story.chapters for line in describe(chapter.record)]
    assert story.state == "completed"
    assert told[:4] == ["u queue", "count goal 26", "admitted (queued): pays 0.0000", "0 jobs are before it"]
    assert "a solver is asked for the order of the queue" in told
    assert "a solver has answered" in told, "no view has words for that"
    assert [line for line in told if "loss" in line or "adapter" in line] == [], "counting has neither"
    assert "completed on a2: 26 samples" in told
    asked = [chapter.record for chapter in story.chapters if isinstance(chapter.record, SolveRequested)]
    assert {job_id for request in asked for job_id in request.job_ids} == {"j3"}


def test_summary_has_only_its_figures() -> None:
    summary = summarise(seen()[0])
    assert (summary.jobs, summary.admitted, summary.completed, summary.adapters) == (9, 9, 9, ())
    assert set(summary.zones) == {"z"}
    assert summary.as_json()["zones"]["z"]["turns"] == TURNS
    assert ("turns", str(TURNS)) in zone_rows(summary.zones["z"])
