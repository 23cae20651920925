"""A deployment of a testbed: a broker, a worker, executors that train, and the log of its jobs."""

import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from rich.console import Console

from bench.runs import digest_of
from bench.testbed.fleet import SEQUENCE_S, Size, Testbed, cell_of
from infra.broker import watched_broker
from infra.demo.demo_environment import Record, Stage, default_model, running_stage
from infra.deployment.deployment import DeploymentSpec, principals, sole_user
from infra.deployment.deployment_folders import Folders
from infra.deployment.fork_server import fork_server
from infra.errors import CommandError
from infra.kafka.settings import broker_settings
from infra.log.target import Target
from infra.progress import Progress
from streams.replay.export import export
from streams.replay.files import DECISIONS_FILE, LEDGER_FILE
from streams.replay.sources import verify_kafka

_SOURCES = (
    "schemas",
    "solvers",
    "streams",
    "executors",
    "infra/deployment",
    "infra/demo",
    "infra/workloads",
    *(f"bench/testbed/{name}.py" for name in ("fleet", "deployed", "auction", "elastic", "merging")),
    "requirements.lock",
)
"""Files that determine the log of a deployment."""
_PREFIX = "testbed"
_PATIENCE_S = 300.0
_LEAD_S = 1.0
_PROGRESS_FILE = "progress.log"


@dataclass
class SubmittedJobs:
    """Sends jobs at their times, until all jobs are over. See `Scene`."""

    stage: Stage
    testbed: Testbed
    size: Size
    seed: int

    def play(self) -> Iterator[str]:
        """See `Scene`."""
        yield from self.stage.online(self.testbed.policy)
        cell = self.stage.cell
        waiting = deque(self.testbed.jobs(cell, self.size, self.seed, time.time() + _LEAD_S))
        jobs = {timed.event.job_id for timed in waiting}
        while True:
            while waiting and waiting[0].time_s <= time.time():
                self.stage.send(waiting.popleft().event)
            over = {id for id, job in self.stage.board.jobs.by_id.items() if job.is_over}
            if not waiting and jobs <= over:
                return
            yield f"{len(jobs - over)} of {len(jobs)} jobs"

    def note(self, records: Sequence[Record]) -> None:
        """See `Scene`: the log has them all."""

    @property
    def shortcomings(self) -> list[str]:
        """See `Scene`."""
        return []

    @property
    def summary(self) -> str:
        """See `Scene`."""
        return f"{self.size.jobs} jobs on {self.size.nodes} executors"


def deployed(testbed: Testbed, size: Size, seed: int, folder: Path) -> Path:
    """Return the ledger of `deploy`, from a folder where it was kept by the same sources, or by deploying."""
    run = f"{testbed.policy}-{size.nodes}-{size.jobs}-{size.length:g}-seed{seed}"
    place = folder / digest_of(_SOURCES) / run
    return ledger if (ledger := place / LEDGER_FILE).exists() else deploy(testbed, size, seed, place)


def deploy(testbed: Testbed, size: Size, seed: int, folder: Path) -> Path:
    """Run the jobs of a seed on a deployment, and return the file of its ledger, with the decisions next to
    it. All processes end with this function.

    Args:
        folder: folder for the log, and for the output of the services.

    Raises:
        CommandError: a service does not start or keeps dying, nothing happens for five minutes, or the log
            does not verify.
        BrokerError, PublishError, ReadError: Kafka fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory(prefix="millrace-testbed-")))
        output = stack.enter_context((folder / _PROGRESS_FILE).open("w", encoding="utf-8"))
        progress = stack.enter_context(Progress(Console(file=output, width=110), timed=True).shown())
        folders = Folders(root)
        stack.callback(shutil.copytree, folders.logs, folder / "services", dirs_exist_ok=True)
        stack.enter_context(sole_user(folders))
        testbed.write_data(folders)
        settings = broker_settings().model_copy(update={"bootstrap_servers": None, "broker_secure": False})
        server = stack.enter_context(fork_server(folders.logs))
        await_model = stack.enter_context(default_model(folders, server))
        broker = stack.enter_context(watched_broker(settings, ephemeral=True))
        connections = principals(broker, _PREFIX)
        targets = {role: Target(connection, _PREFIX) for role, connection in connections.items()}
        await_model()
        layout = DeploymentSpec(
            _cells_file(testbed, size, root),
            folders,
            targets["operators"],
            connections=connections,
            first_zones=(),
            settings={"MILLRACE_LEAST_SEQUENCE_S": str(SEQUENCE_S), **testbed.settings},
        )
        with running_stage(layout, server, targets, progress, _PATIENCE_S) as stage:
            scene = SubmittedJobs(stage, testbed, size, seed)
            stage.play([scene])
            stage.drain([scene])
        verdict = verify_kafka(connections["auditor"], _PREFIX)
        if not verdict.ok:
            raise CommandError(f"testbed {testbed.policy}: the replay of the log does not verify")
        files = root / LEDGER_FILE, root / DECISIONS_FILE
        export(connections["auditor"], _PREFIX, *files, verdict.settled)
        # The ledger last: where it is, the log is whole.
        for file in reversed(files):
            shutil.move(file, folder / file.name)
    return folder / LEDGER_FILE


def _cells_file(testbed: Testbed, size: Size, root: Path) -> Path:
    path = root / "cells.yaml"
    # The deployment states the epoch.
    fields = cell_of(testbed, size.nodes, 0.0).model_dump(mode="json", exclude={"epoch_s"})
    path.write_text(yaml.safe_dump({"cells": [fields]}), encoding="utf-8")
    return path
