"""A report that does not reach the broker is never passed over in silence."""

import socket
from collections.abc import Iterator

import pytest

from executors.node.process import SystemClock
from executors.node.reports import FleetReports, Heartbeat, ReportError
from executors.node.settings import ExecutorSettings
from schemas.fleet import NodeHeartbeat
from tests.support.executors import CELL

BEAT = NodeHeartbeat(cell=CELL, node="n1", base_model="tiny", runners=("lora",))


@pytest.fixture
def reports() -> Iterator[FleetReports]:
    """Return reports to a port without a listener, with a short timeout."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = ExecutorSettings(cell=CELL, node="n1", bootstrap_servers=servers)
        yield FleetReports(settings.model_copy(update={"delivery_timeout_s": 0.5}), 1, SystemClock())


def test_unconfirmed_report_is_error(reports: FleetReports) -> None:
    reports.send(BEAT)
    with pytest.raises(ReportError, match="1 reports are not confirmed within"):
        reports.flush(0.1)


def test_after_a_loss_nothing_more_is_taken(reports: FleetReports) -> None:
    reports.send(BEAT)
    with pytest.raises(ReportError, match="timed out"):
        reports.flush(10)
    with pytest.raises(ReportError):
        reports.send(BEAT)
    with pytest.raises(ReportError):
        reports.check()


def test_a_heartbeat_that_is_lost_comes_to_light(reports: FleetReports) -> None:
    with Heartbeat(reports, BEAT, interval_s=0.05) as heartbeat:
        heartbeat._thread.join(10)
        assert not heartbeat._thread.is_alive()
    with pytest.raises(ReportError):
        reports.check()
