"""Log lines of services while their broker is gone, or does not answer."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.kafka.local import LocalKafka
from schemas.outages import QUIET_S
from tests.integration.deployment import Deployment, until
from tests.integration.test_solver import CELL, titan_cell

LOST, BACK = "Kafka is lost", "Kafka is back"
STOPPED_S = 40.0
_NOTICED_S = 300.0
"""Clients notice by their own timeouts, which a busy machine stretches."""


def kill_and_start(broker: LocalKafka, is_logged: Callable[[], bool]) -> None:
    broker.kill()
    until(is_logged, "the outage is logged", _NOTICED_S)
    broker.start()


def stop_and_continue(broker: LocalKafka, is_logged: Callable[[], bool]) -> None:
    """Stop the process: the kernel goes on accepting connections for it, and no request is answered."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
        until(is_logged, "the outage is logged", _NOTICED_S)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.drill
@pytest.mark.parametrize("lose", [kill_and_start, stop_and_continue])
def test_lost_and_restored_broker_are_one_line_each(
    tmp_path: Path, topic_prefix: str, lose: Callable[[LocalKafka, Callable[[], bool]], None]
) -> None:
    with LocalKafka(tmp_path / "broker") as broker:
        deployment = Deployment(
            broker.bootstrap_servers, topic_prefix, tmp_path, [CELL], configuration=titan_cell
        )
        services = [deployment.start_worker(), deployment.start_solver()]
        try:
            deployment.configure(CELL)
            until(lambda: "solver ready" in services[1].output, "the solver is ready")
            lose(broker, lambda: all(LOST in service.output for service in services))
            until(
                lambda: all(BACK in service.output for service in services), "its end is logged", 60 + QUIET_S
            )
            for service in services:
                lines = service.output.splitlines()
                assert sum(LOST in line for line in lines) == 1
                assert sum(BACK in line for line in lines) == 1
                # The first line of an outage is a warning if it is about a request that was not answered.
                assert sum("ERROR" in line and BACK not in line and LOST not in line for line in lines) == 0
        finally:
            deployment.stop_workers()
