"""`millrace up`."""

import os
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.broker import RunningBroker, watched_broker
from infra.commands.options import (
    CELLS_DIRECTORY,
    DEFAULT_PREFIX,
    DataDirectory,
    TopicPrefix,
    bounded,
)
from infra.commands.output import remark
from infra.deployment.deployment import (
    Deployment,
    DeploymentSpec,
    interrupted_by_sigterm,
    principals,
    sole_user,
)
from infra.deployment.deployment_folders import Folders, default_data_dir
from infra.deployment.executors import NodesAwaited
from infra.deployment.fork_server import ForkServer, fork_server
from infra.deployment.settings_check import check_settings
from infra.errors import CommandError
from infra.kafka.files import keep_to_owner
from infra.kafka.settings import BrokerSettings, broker_settings
from infra.log.target import Target
from infra.progress import Progress
from schemas.service_base import OTHERS
from solvers.kernel_cache import keeping_fault
from streams.worker.cells_file import load_cells

_SUPERVISE_S = 0.5


def up(
    cells: Annotated[
        Path, typer.Argument(help="YAML file of cells.", metavar="[CELLS.yaml]")
    ] = CELLS_DIRECTORY / "default.yaml",
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the log and all trained adapters.")] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Run the broker with TLS, SASL and a principal for each role; the data stay secured.",
        ),
    ] = False,
    executors: Annotated[bool, typer.Option(help="Run one executor per node.")] = True,
    executor_threads: Annotated[int, bounded(least=1, most=1_024, help="CPU threads of each executor.")] = 1,
    data_dir: DataDirectory = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Run a whole deployment on this machine until Ctrl-C: broker, topics, worker, executors, clock."""
    cells = cells.absolute()
    described = load_cells(cells, 0.0)  # an invalid file is refused before anything starts
    folders = Folders((data_dir or default_data_dir()).absolute())
    progress = Progress(Console(highlight=False, stderr=True))
    try:
        with interrupted_by_sigterm(), sole_user(folders), progress.shown():
            check_settings(described, folders, executors)
            settings = _broker_settings(folders, secure)
            if fault := keeping_fault():
                progress.show(f"kernels are compiled at each start, since they cannot be kept in {fault}")
            if fresh:
                _clear(folders, settings)
            progress.awaits("the Kafka broker")
            # It imports its modules while the broker starts.
            forking = fork_server(folders.logs) if executors else nullcontext()
            with forking as server, watched_broker(settings) as broker:
                progress.show(f"broker answers at {broker.bootstrap_servers}")
                connections = principals(broker, topic_prefix)
                if connections["operators"].kafka_security_protocol != "PLAINTEXT":
                    _keep_to_owner(folders)
                credentials = None if broker.credentials is None else broker.credentials.folder
                if credentials is not None:
                    progress.show(
                        f"broker is secured: a principal for each role, their passwords in {credentials}"
                    )
                layout = DeploymentSpec(
                    cells,
                    folders,
                    Target(connections["operators"], topic_prefix),
                    executor_threads,
                    executors,
                    connections,
                    credentials,
                )
                _run(broker, layout, server, progress)
    except KeyboardInterrupt:
        remark("stopped: nothing of the deployment runs any more")
        raise


def _run(
    broker: RunningBroker, layout: DeploymentSpec, server: ForkServer | None, progress: Progress
) -> None:
    """Run services until an interrupt, and restart every service that dies."""
    folders = layout.folders
    deployment = Deployment(layout, progress.show, server, progress.awaits)
    log = Target(layout.connection("auditor"), layout.target.prefix)
    with deployment.running(), closing(NodesAwaited(log, set(deployment.executors))) as nodes:
        try:
            progress.show(f"datasets go to {folders.datasets}, logs are in {folders.logs}")
            progress.show("up: Ctrl-C stops")
            while True:
                if broker.keep_running():
                    progress.show(
                        f"broker died and is started again; it answers at {broker.bootstrap_servers}"
                    )
                deployment.keep_running()
                for line in nodes.news():
                    progress.show(line)
                progress.awaits(nodes.awaited)
                time.sleep(_SUPERVISE_S)
        finally:
            progress.awaits("the services to stop")


def _broker_settings(folders: Folders, secure: bool) -> BrokerSettings:
    settings = broker_settings()
    if secure:
        settings = settings.model_copy(update={"broker_secure": True})
    if "broker_data_dir" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"broker_data_dir": folders.broker})


def _keep_to_owner(folders: Folders) -> None:
    """Restrict all files of the deployment, and those that services will make, to their owner."""
    os.umask(OTHERS)
    try:
        keep_to_owner(folders.root)
    except OSError as error:
        fault = f"{error.filename}: {error.strerror}"
        raise CommandError(f"{fault}; all files of a secured deployment are its owner's alone") from None


def _clear(folders: Folders, settings: BrokerSettings) -> None:
    if settings.bootstrap_servers is not None or settings.broker_data_dir != folders.broker:
        raise CommandError("--fresh needs a broker that `up` starts: use another --topic-prefix instead")
    folders.clear()
    folders.create()
