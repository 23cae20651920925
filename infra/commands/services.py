"""`millrace worker`, `executor`, `solver` and `clock`: one service each, in the foreground."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from infra.clock import run_clock
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    CellsFile,
    TopicPrefix,
    bounded,
    cells_of,
    settings_faults,
    target_of,
)
from infra.deployment.configuring import ledger_configurations
from infra.errors import CommandError
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from schemas.cells import CellConfigured

_CONFIGURATION_POLL_S = 1.0


def worker(
    cells: Annotated[
        Path | None,
        typer.Argument(
            help="YAML file of cells; MILLRACE_CELLS_FILE if not given.",
            metavar="CELLS.yaml",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a worker; its settings are MILLRACE_* variables."""
    # Imported here, as below: each service loads its own libraries and no other's.
    from streams.worker.settings import WorkerSettings
    from streams.worker.worker import run_worker

    with settings_faults():
        settings = WorkerSettings() if cells is None else WorkerSettings(cells_file=cells)
    run_worker(settings)


def executor(
    node: Annotated[
        str | None, typer.Option(help="The node to serve; MILLRACE_NODE if not given.", show_default=False)
    ] = None,
) -> None:
    """Run an executor; its settings are MILLRACE_* variables."""
    from executors.node import ExecutorSettings, main

    with settings_faults():
        settings = ExecutorSettings() if node is None else ExecutorSettings(node=node)
    main(settings)


def solver(
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Run a solver, which answers the long solves of policies; its other settings are MILLRACE_* variables."""
    from streams.solver.process import run_solver
    from streams.solver.service import SolverSettings

    target = target_of(bootstrap_servers, topic_prefix, "solver")
    with settings_faults():
        settings = SolverSettings(**target.kafka.as_fields(), topic_prefix=target.prefix)
    run_solver(settings)


def clock(
    cells: CellsFile,
    cell: CellName = None,
    interval_s: Annotated[
        float | None,
        bounded(
            "--interval",
            least=0.01,
            most=86_400,
            help="Seconds between ticks; by default some per slot.",
            show_default=False,
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Tell the cells of a file the time, until Ctrl-C."""
    names = {configuration.cell for configuration in cells_of(cells, 0.0)}
    if cell is not None:
        if cell not in names:
            raise CommandError(f"{cells}: has no cell {cell}, it has {', '.join(sorted(names))}")
        names = {cell}
    target = target_of(bootstrap_servers, topic_prefix, "operators")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    configurations = _configurations(target, names, stop)
    if configurations:
        with EventPublisher(target, "millrace/clock") as publisher:
            run_clock(publisher, configurations, stop, interval_s)


def _configurations(target: Target, names: set[str], stop: threading.Event) -> list[CellConfigured]:
    """The cells as their ledgers have them, by whose epoch slots begin; waits for those to come."""
    while True:
        found = ledger_configurations(target, names)
        if found.keys() == names:
            return [found[name] for name in sorted(found)]
        if stop.wait(_CONFIGURATION_POLL_S):
            return []
