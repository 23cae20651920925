"""Log lines of a worker for events that faulted."""

import logging

import pytest

from streams.policies.auction.zone import AuctionZone
from streams.worker.publication import METRIC, FaultLog
from tests.support.cells import Bench, bid, tick


def test_first_and_tenth_fault_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    log, bench = FaultLog(counted.append), Bench.configured()
    bench.send(tick(0))
    monkeypatch.setattr(AuctionZone, "submitted", lambda *_: 1 / 0)
    for number in range(12):
        bench.send(bid(f"j{number}"))
        log.log_fault(bench.cell, bench.decisions[-1:])
    first, tenth = caplog.records
    assert first.levelno == logging.ERROR
    assert "event=e2 type=millrace.job.submitted.v1 exception=ZeroDivisionError" in first.message
    assert "zone=z place=submitted so_far=1" in first.message
    assert "Traceback" in first.message
    assert __file__ in first.message
    assert "so_far=10" in tenth.message
    assert "Traceback" not in tenth.message
    assert counted == [METRIC] * 12


def test_other_decisions_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log, bench = FaultLog(), Bench.configured()
    log.log_fault(bench.cell, bench.decisions)
    assert caplog.records == []
