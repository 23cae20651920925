"""`millrace withdraw` finds its job, recognises the answer, and prints it."""

import json

import pytest

from infra.commands.asking import cell_of_job, print_withdrawal
from infra.errors import CommandError
from infra.log.answers import Awaited
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobStateName, JobWithdrawn
from schemas.elastic.commands import WorkersAssigned
from schemas.jobs import JobWithdrawalRequested
from schemas.view_records import JobState
from tests.support import elastic
from tests.support.cells import Bench, bid, tick, withdraw
from tests.support.elastic import ElasticBench


def state(cell: str = "c", user: str = "u", stands: JobStateName = "admitted") -> JobState:
    return JobState(
        cell=cell, zone="z", job_id="j", user=user, state=stands, reason="r", decision_id="d", time_s=None
    )


def test_only_open_job_of_user_is_chosen() -> None:
    assert cell_of_job([state()], "j", "u") == "c"
    others = [state(cell="e", user="v"), state(cell="d", stands="completed")]
    assert cell_of_job([*others, state()], "j", "u") == "c"


@pytest.mark.parametrize(
    ("states", "user", "fault"),
    [
        ([], "u", "no job j was decided: of one that still waits, give --cell"),
        ([state()], "v", "job j is of another user"),
        ([state(stands="completed")], "u", "job j is over: completed"),
        ([state(), state(cell="d")], "u", "job j is in cells c, d: choose with --cell"),
    ],
)
def test_missing_or_ambiguous_job_is_refused(states: list[JobState], user: str, fault: str) -> None:
    with pytest.raises(CommandError, match=fault):
        cell_of_job(states, "j", user)


def answers(bench: Bench, request: JobWithdrawalRequested, since: int) -> list[Decision]:
    """Return the decisions from `since` on that answer a withdrawal, the latest event of its kind."""
    sent = [entry.envelope for entry in bench.ledger if entry.envelope.event == request]
    awaited = Awaited({sent[-1].id if sent else "to come": request})
    return [decision for decision in bench.decisions[since:] if awaited.resolve(decision)]


def test_unstarted_job_is_withdrawn_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench.configured()
    bench.send(tick(0), bid())
    before = len(bench.decisions)
    bench.send(withdraw())
    (answer,) = answers(bench, withdraw(), before)
    print_withdrawal("j", answer, False)
    assert capsys.readouterr().out == "j withdrawn: 2.0000 returned, 0.0000 retained\n"
    print_withdrawal("j", answer, True)
    assert json.loads(capsys.readouterr().out) == {
        "job_id": "j",
        "decision_id": answer.id,
        "state": "withdrawn",
        "returned_micros": 2_000_000,
        "retained_micros": 0,
    }


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (withdraw("k"), r"k: not withdrawn \(unknown_job\): job k is over, or was never admitted"),
        (withdraw(user="v"), r"j: not withdrawn \(not_the_owner\): job j is of another user"),
    ],
)
def test_a_withdrawal_that_changes_nothing_is_a_fault(asked: JobWithdrawalRequested, fault: str) -> None:
    bench = Bench.configured()
    bench.send(tick(0), bid())
    before = len(bench.decisions)
    bench.send(asked)
    (answer,) = answers(bench, asked, before)
    with pytest.raises(CommandError, match=fault):
        print_withdrawal(asked.job_id, answer, False)


@pytest.fixture
def running() -> tuple[ElasticBench, WorkersAssigned]:
    """An elastic job whose worker trains."""
    bench = ElasticBench()
    bench.send(elastic.elastic_cell(), elastic.tick(0.0), elastic.submit("j"))
    (order,) = elastic.commands(bench.send(elastic.tick(60.0)))
    assert isinstance(order, WorkersAssigned)
    bench.send(elastic.started(order))
    return bench, order


def test_running_job_is_withdrawn_after_its_workers_end(
    running: tuple[ElasticBench, WorkersAssigned],
) -> None:
    bench, _ = running
    before = len(bench.decisions)
    (order,) = elastic.commands(bench.send(elastic.withdraw("j")))
    assert answers(bench, elastic.withdraw("j"), before) == []
    bench.send(elastic.gone(order))
    (answer,) = answers(bench, elastic.withdraw("j"), before)
    assert isinstance(answer.outcome, JobWithdrawn)


def test_completed_job_is_not_withdrawn(
    running: tuple[ElasticBench, WorkersAssigned],
) -> None:
    bench, order = running
    before = len(bench.decisions)
    bench.send(elastic.finished(order))
    (answer,) = answers(bench, elastic.withdraw("j"), before)
    with pytest.raises(CommandError, match=r"j: over before it was withdrawn: completed"):
        print_withdrawal("j", answer, False)


def test_bid_is_answered_by_its_admission_only() -> None:
    bench = Bench.configured()
    bench.send(tick(0), bid())
    awaited = Awaited({"asked": bid()})
    bench.send(withdraw())
    answered = [type(each.outcome) for each in bench.decisions if awaited.resolve(each) == "asked"]
    assert answered == [JobAdmitted]
    assert not awaited.events
