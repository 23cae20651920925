"""Log lines of services while their broker is gone."""

from pathlib import Path

import pytest

from infra.broker import LocalKafka
from schemas.outages import QUIET_S
from tests.integration.deployment import Deployment, until
from tests.integration.test_solver import CELL, titan_cell

LOST, BACK = "Kafka is lost", "Kafka is back"


@pytest.mark.drill
def test_a_broker_that_is_lost_and_comes_back_is_one_line_each(tmp_path: Path, topic_prefix: str) -> None:
    with LocalKafka(tmp_path / "broker") as broker:
        deployment = Deployment(
            broker.bootstrap_servers, topic_prefix, tmp_path, [CELL], configuration=titan_cell
        )
        services = [deployment.start_worker(), deployment.start_solver()]
        try:
            deployment.configure(CELL)
            until(lambda: "solver ready" in services[1].output, "the solver is ready")
            broker.kill()
            until(lambda: all(LOST in service.output for service in services), "the outage is logged")
            broker.start()
            until(
                lambda: all(BACK in service.output for service in services), "its end is logged", 60 + QUIET_S
            )
            for service in services:
                lines = service.output.splitlines()
                assert sum(LOST in line for line in lines) == 1
                assert sum("ERROR" in line and BACK not in line for line in lines) == 1
        finally:
            deployment.stop_workers()
