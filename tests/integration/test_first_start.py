"""A deployment whose first start did not wait for long enough for its worker."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.deployment.cells import configure_cells
from infra.errors import CommandError
from infra.log.target import Target
from streams.worker.cells_file import CellsFile
from tests.integration.deployment import DEMO_CELLS, TIMEOUT_S, Deployment

CELL = "demo"


@pytest.fixture
def deployment(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(kafka, topic_prefix, tmp_path, [CELL])
    yield deployment
    deployment.stop_workers()


def test_second_start_resumes_sent_configuration(deployment: Deployment) -> None:
    target = Target(deployment.kafka, deployment.prefix)
    cells_file = CellsFile.read(DEMO_CELLS)
    first_s = time.time()
    with pytest.raises(CommandError, match="no worker has accepted demo within"):
        configure_cells(target, cells_file, first_s, 0.5, lambda: None)

    deployment.start_worker()
    (cell,) = configure_cells(target, cells_file, time.time() + 60, TIMEOUT_S, lambda: None)

    assert (cell.is_new, cell.differs) == (False, False)
    assert cell.configuration.epoch_s == cells_file.cell(CELL, first_s).epoch_s
