"""Services that stop or die while servers are lent and reclaimed."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from infra.deployment.service import Service
from schemas.codec import decode_event
from schemas.inference import CapacityOffered, CapacityReclaimed
from schemas.loans import LoanChanged, OfferAnswered, ReclaimEnded, ReclaimPlanned
from schemas.topics import INFERENCE
from streams.kafka.reader import KafkaReader
from tests.integration.loan_fleet import BUSY, CELL, OWN, QUIET, Fleet, running_fleet

pytestmark = [pytest.mark.drill, pytest.mark.timeout(600)]

STOPPED_S = 30.0


@pytest.fixture(scope="module")
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(kafka, tmp_path_factory.mktemp("drills")) as fleet:
        yield fleet


def send(service: Service, number: signal.Signals) -> None:
    assert service.pid is not None
    os.kill(service.pid, number)


def reports_of(fleet: Fleet, kind: type) -> list:
    """Return the events of a kind that the lender has published."""
    with KafkaReader(fleet.target.kafka) as reader:
        records = list(reader.read(reader.slice(fleet.target.topic(INFERENCE))))
    events = (decode_event(record.value, record.headers).event for record in records)
    return [event for event in events if isinstance(event, kind)]


def test_offer_during_worker_outage_is_answered_later(fleet: Fleet) -> None:
    send(fleet.deployment.worker, signal.SIGKILL)
    fleet.load = QUIET
    deadline_s = time.monotonic() + 30.0
    while not reports_of(fleet, CapacityOffered):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    assert not fleet.on_loan()
    fleet.until(fleet.on_loan, "the server is lent by the worker that was started again")
    assert len(fleet.on_loan()) == len(reports_of(fleet, CapacityOffered)) == 1
    assert not any(answer.refused for answer in fleet.decided(OfferAnswered))
    fleet.load = BUSY
    fleet.until(lambda: not fleet.on_loan(), "the server is back")
    fleet.assert_proven()


def test_suspended_lender_delays_and_repeats_no_reclaim(fleet: Fleet) -> None:
    reclaims, ended = len(reports_of(fleet, CapacityReclaimed)), len(fleet.decided(ReclaimEnded))
    fleet.load = QUIET
    fleet.until(fleet.on_loan, "a server is lent")
    fleet.load = BUSY
    fleet.until(lambda: len(reports_of(fleet, CapacityReclaimed)) > reclaims, "it is wanted back")
    (lender,) = fleet.deployment.lenders
    send(lender, signal.SIGSTOP)
    stopped_s = time.monotonic()
    fleet.until(lambda: not fleet.on_loan(), "the server is back without the lender")
    time.sleep(max(stopped_s + STOPPED_S - time.monotonic(), 0.0))
    send(lender, signal.SIGCONT)
    fleet.load = QUIET
    fleet.until(fleet.on_loan, "the lender goes on")
    fleet.load = BUSY
    fleet.until(lambda: not fleet.on_loan(), "the server is back again")
    assert len(reports_of(fleet, CapacityReclaimed)) == reclaims + 2
    fleet.until(lambda: len(fleet.decided(ReclaimEnded)) == ended + 2, "both reclaims are over")
    assert {reclaim.status for reclaim in fleet.decided(ReclaimEnded)[ended:]} == {"in_time"}
    fleet.assert_proven()


def test_executor_killed_while_draining_returns_server(fleet: Fleet) -> None:
    work_samples, planned = 1_600, len(fleet.decided(ReclaimPlanned))
    fleet.submit("wide", work_samples, max_workers=2, heterogeneous=True)
    fleet.load = QUIET
    fleet.until(fleet.on_loan, "a server is lent")
    (server,) = fleet.on_loan()
    fleet.until(lambda: fleet.starts("wide", server), "the job spreads to it")
    executor = fleet.deployment.executors[CELL, server]
    # It obeys nothing any more, so that the server drains until it dies.
    send(executor, signal.SIGSTOP)
    fleet.load = BUSY
    fleet.until(lambda: len(fleet.decided(ReclaimPlanned)) > planned, "the server is wanted back")
    send(executor, signal.SIGKILL)
    fleet.until(lambda: not fleet.on_loan(), "the server is back")
    assert [change.status for change in fleet.decided(LoanChanged)][-3:] == [
        "on_loan",
        "draining",
        "returned",
    ]
    fleet.await_completed("wide", fleet.until)
    assert fleet.starts("wide", OWN)[-1].samples_done < work_samples
    fleet.assert_whole("wide", work_samples)
    fleet.assert_proven()
