"""Real data-parallel training on servers that a real lender lends and takes back, through Kafka."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from schemas.decisions import JobQuoted, JobWithdrawn
from schemas.elastic.outcomes import ElasticForecast, JobProfiled
from schemas.elastic.workload import ElasticTerms
from schemas.fleet import NodeSeen
from schemas.jobs import JobQuoteRequested, JobWithdrawalRequested
from schemas.loans import OfferAnswered, ReclaimEnded
from tests.integration import deployment
from tests.integration.loan_fleet import BUSY, CELL, OWN, QUIET, READY_S, TRAINING, Fleet, running_fleet

pytestmark = pytest.mark.timeout(600)


def until(question: Callable[[], object], what: str) -> None:
    """Wait; nothing that dies is started again."""
    deployment.until(question, what, READY_S)


@pytest.fixture(scope="module")
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(kafka, tmp_path_factory.mktemp("elastic")) as fleet:
        yield fleet


def test_elastic_job_spreads_to_lent_server_and_returns(fleet: Fleet) -> None:
    work_samples = 2_000
    fleet.submit("wide", work_samples, max_workers=2, heterogeneous=True)
    until(lambda: fleet.starts("wide", OWN), "the job runs on the training server")
    fleet.load = QUIET
    until(fleet.on_loan, "a server is lent")
    (server,) = fleet.on_loan()
    until(lambda: fleet.starts("wide", server), "the job spreads to it")
    (spread,) = fleet.starts("wide", server)
    until(lambda: fleet.trained("wide")[-1].samples_done > spread.samples_done + 100, "it trains on both")
    assert not fleet.completed("wide")
    fleet.load = BUSY
    until(lambda: not fleet.on_loan(), "the server is back")
    until(lambda: fleet.decided(ReclaimEnded), "the end of the reclaim")
    assert [ended.status for ended in fleet.decided(ReclaimEnded)] == ["in_time"]
    assert fleet.reasons("wide")[:3] == ["started", "scaled_out", "servers_reclaimed"]
    assert [resized.workers for resized in fleet.resizes("wide")][:3] == [1, 2, 1]
    fleet.await_completed("wide")
    fleet.assert_whole("wide", work_samples)
    # Nothing was lost: each set of workers goes on where the one before it was.
    starts = [run.samples_done for run in fleet.starts("wide", OWN)]
    assert starts == sorted(starts)
    assert 0 < starts[-1] < work_samples
    assert not any(answer.refused for answer in fleet.decided(OfferAnswered))
    # A server's presence is read once it is lent, and costs the ledger no more than that.
    assert [heard.node for heard in fleet.events(NodeSeen)] == [server]
    fleet.assert_proven()


UNKNOWN: dict[str, Any] = {
    "samples_per_s": None,
    "max_workers": 2,
    "heterogeneous": True,
    # Shorter sequences than those of the other jobs, whose steps are of another kind.
    "hyperparameters": {"global_batch_size": 8, "micro_batch_size": 4, "sequence_length": 32},
}


def quote(fleet: Fleet, quote_id: str) -> ElasticForecast:
    """Ask when a job of unknown speed would end if it were submitted now."""
    fleet.send(
        JobQuoteRequested(
            cell=CELL,
            quote_id=quote_id,
            user="ann",
            zone=TRAINING,
            workload=fleet.workload(10**6, **UNKNOWN),
            terms=ElasticTerms(),
        )
    )
    quotes: list[ElasticForecast] = []

    def answered() -> bool:
        for quoted in fleet.decided(JobQuoted):
            if quoted.quote_id == quote_id and isinstance(quoted.evidence, ElasticForecast):
                quotes.append(quoted.evidence)
        return bool(quotes)

    until(answered, "the quote is answered")
    return quotes[0]


def test_job_of_unknown_speed_is_measured_and_grows(fleet: Fleet) -> None:
    fleet.load = QUIET
    until(fleet.on_loan, "a server is lent")
    assert quote(fleet, "before").speed_from == "assumed"
    fleet.submit("unknown", 10**6, **UNKNOWN)

    def profiles() -> list[JobProfiled]:
        return [profiled for profiled in fleet.decided(JobProfiled) if profiled.job_id == "unknown"]

    until(profiles, "its first worker is measured")
    until(lambda: len(profiles()) > 1, "it grows, and its two workers are measured")
    first, second = profiles()[:2]
    assert [resized.workers for resized in fleet.resizes("unknown")][:2] == [1, 2]
    assert (first.expected_from, first.workers) == ("assumed", 1)
    assert first.profile_gpu_s > 0
    assert (second.expected_from, second.workers) == ("measured", 2)
    corrected = quote(fleet, "after")
    assert corrected.speed_from == "measured"
    assert corrected.duration_error_pct is not None
    alone_s = 10**6 / first.samples_per_s
    assert corrected.latest_end_s - corrected.start_s == pytest.approx(alone_s, rel=0.5)
    fleet.send(JobWithdrawalRequested(cell=CELL, job_id="unknown", user="ann"))
    until(lambda: [job for job in fleet.decided(JobWithdrawn) if job.job_id == "unknown"], "it is over")
    fleet.load = BUSY
    until(lambda: not fleet.on_loan(), "the server is back")
    fleet.assert_proven()


@pytest.mark.drill
def test_inelastic_job_resumes_after_preemption_on_loan(fleet: Fleet) -> None:
    reclaims, work_samples = len(fleet.decided(ReclaimEnded)), 1_000
    # Declared as slower than it is, so it gives way to no job.
    fleet.submit("first", 10**7, samples_per_s=10.0)
    until(lambda: fleet.starts("first", OWN), "the training server is taken")
    fleet.submit("second", work_samples, fungible=True)
    fleet.load = QUIET
    until(lambda: fleet.trained("second"), "the other job trains on a server on loan")
    assert {run.node for run in fleet.trained("second")} == fleet.on_loan()
    fleet.load = BUSY
    until(lambda: not fleet.on_loan(), "the server is back")
    until(lambda: len(fleet.decided(ReclaimEnded)) > reclaims, "the end of the reclaim")
    assert fleet.decided(ReclaimEnded)[-1].status == "in_time"
    assert fleet.reasons("second") == ["started", "preempted"]
    fleet.send(JobWithdrawalRequested(cell=CELL, job_id="first", user="ann"))
    until(lambda: fleet.starts("second", OWN), "the job goes on")
    (resumed,) = fleet.starts("second", OWN)
    assert 0 < fleet.trained("second")[0].samples_done <= resumed.samples_done < work_samples
    fleet.await_completed("second")
    assert "first" in [job.job_id for job in fleet.decided(JobWithdrawn)]
    fleet.assert_whole("second", work_samples)
    fleet.assert_proven()
