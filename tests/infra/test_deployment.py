"""A deployment stops when one of its services cannot continue."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.deployment import deployment as deployment_module
from infra.deployment.deployment import Deployment, DeploymentSpec
from infra.deployment.deployment_folders import Folders
from infra.deployment.service import Service, command
from infra.errors import CommandError
from infra.log.target import Target
from schemas.service_base import EXIT_UNFIT

TIMEOUT_S = 30.0
FOREVER = "import time; print('here', flush=True); time.sleep(600)"
UNFIT = f"print('the model is missing', flush=True); raise SystemExit({EXIT_UNFIT})"


class Services(Deployment):
    """A deployment whose services are other programs."""

    def begin(self, **programs: str) -> None:
        made = {
            name: Service(name, command([sys.executable, "-c", program], {}), self.spec.folders.logs)
            for name, program in programs.items()
        }
        self.worker, self.clock = made.pop("worker"), made.pop("clock")
        self.executors = {("c", name): service for name, service in made.items()}
        for service in self.services:
            service.start()


@pytest.fixture
def printed() -> list[str]:
    return []


@pytest.fixture
def running(tmp_path: Path, printed: list[str]) -> Iterator[Services]:
    folders = Folders(tmp_path)
    folders.create()
    services = Services(
        DeploymentSpec(tmp_path / "cells.yaml", folders, Target("nowhere:1", "p")), printed.append
    )
    yield services
    for service in services.services:
        service.stop()


def keep_running_until(services: Services, printed: list[str], words: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not any(words in line for line in printed):
        assert time.monotonic() < end_s, printed
        services.keep_running()
        time.sleep(0.05)


def test_unfit_executor_leaves_others_running(running: Services, printed: list[str]) -> None:
    running.begin(worker=FOREVER, clock=FOREVER, n1=UNFIT, n2=FOREVER)

    keep_running_until(running, printed, "n1 cannot run: the model is missing; the others go on")
    lines = len(printed)
    running.keep_running()

    assert len(printed) == lines
    assert running.executors["c", "n2"].pid is not None


def test_it_is_tried_again_after_a_while(
    running: Services, printed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment_module, "EXECUTOR_RETRY_S", 0.5)
    flag = tmp_path / "mended"
    program = (
        f"import pathlib, time\nif not pathlib.Path({str(flag)!r}).exists():\n  {UNFIT}\ntime.sleep(600)"
    )
    running.begin(worker=FOREVER, clock=FOREVER, n1=program, n2=FOREVER)
    keep_running_until(running, printed, "n1 cannot run")
    flag.touch()

    keep_running_until(running, printed, "n1 died and is started again")

    assert running.executors["c", "n1"].pid is not None


def test_deployment_ends_if_all_executors_are_unfit(running: Services, printed: list[str]) -> None:
    running.begin(worker=FOREVER, clock=FOREVER, n1=UNFIT, n2=UNFIT)

    with pytest.raises(CommandError, match="cannot run: the model is missing"):
        keep_running_until(running, printed, "nothing that is ever said")


def test_a_deployment_without_its_worker_ends(running: Services, printed: list[str]) -> None:
    running.begin(worker=UNFIT, clock=FOREVER, n1=FOREVER)

    with pytest.raises(CommandError, match="worker cannot run: the model is missing"):
        keep_running_until(running, printed, "nothing that is ever said")
