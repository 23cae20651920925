"""`millrace worker`, `executor`, `solver` and `clock`: one service each, in the foreground."""

import heapq
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    CellsFile,
    TopicPrefix,
    bounded,
    settings_faults,
    target_of,
)
from infra.deployment.cells import PresentCell, ledger_configurations, present_cells
from infra.deployment.deployment_folders import Folders, default_data_dir
from infra.deployment.executors import executor_environment
from infra.errors import CommandError
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked, next_tick_s, tick_interval_s
from schemas.service_base import stopped_by_signals
from streams.worker.cells_file import load_cells

_CONFIGURATION_POLL_S = 0.25


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
    # A late import, as below: a service loads only its own libraries.
    from streams.worker.settings import WorkerSettings
    from streams.worker.worker import run_worker

    with settings_faults():
        settings = WorkerSettings() if cells is None else WorkerSettings(cells_file=cells)
    run_worker(settings)


def executor(
    node: Annotated[str, typer.Option(envvar="MILLRACE_NODE", help="The node to serve.", show_default=False)],
    cell: Annotated[
        str | None, typer.Option(help="Its cell, where several have such a node.", show_default=False)
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Run an executor, set up for its node's zone; MILLRACE_* variables take precedence."""
    from executors.node import ExecutorSettings, main

    fields = target_of(bootstrap_servers, topic_prefix, "nodes").kafka.as_fields()
    if cell is not None or not os.environ.get("MILLRACE_CELL"):
        found = _cell_with(target_of(bootstrap_servers, topic_prefix, "operators"), node, cell)
        fields["cell"] = found.configuration.cell
        folders = Folders(default_data_dir().absolute())
        for name, value in executor_environment(found, node, folders).items():
            os.environ[name] = os.environ.get(name) or value
    with settings_faults():
        settings = ExecutorSettings(**fields, node=node, topic_prefix=topic_prefix)
    main(settings)


def solver(
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Run a solver for the long solves of policies; its other settings are MILLRACE_* variables."""
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
            help="Seconds between ticks; by default several per slot.",
            show_default=False,
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Send the time to the cells of a file, until Ctrl-C."""
    names = {configuration.cell for configuration in load_cells(cells, 0.0)}
    if cell is not None:
        if cell not in names:
            raise CommandError(f"{cells}: has no cell {cell}, it has {', '.join(sorted(names))}")
        names = {cell}
    target = target_of(bootstrap_servers, topic_prefix, "operators")
    with stopped_by_signals() as stop:
        configurations = _configurations(target, names, stop)
        if configurations:
            with EventPublisher(target, "millrace/clock") as publisher:
                run_clock(publisher, configurations, stop, interval_s)


def _cell_with(log: Target, node: str, cell: str | None) -> PresentCell:
    """Return the named cell, or the only cell that has the node.

    Raises:
        CommandError: no cell has the node, or several have it.
    """
    cells = {name: found for name, found in present_cells(log).items() if cell in (None, name)}
    having = [name for name, found in sorted(cells.items()) if node in found.nodes.by_id]
    if len(having) > 1:
        raise CommandError(f"cells {', '.join(having)} have a node {node}: choose one with --cell")
    if not having:
        known = ", ".join(sorted(cells)) or "none"
        raise CommandError(
            f"no cell has a node {node} (cells: {known}): `millrace nodes register` makes it known"
        )
    return cells[having[0]]


def _configurations(target: Target, names: set[str], stop: threading.Event) -> list[CellConfigured]:
    """Return the cells' configurations in their ledgers, which have the epochs; wait for missing ones."""
    while True:
        found = ledger_configurations(target, names)
        if found.keys() == names:
            return [found[name] for name in sorted(found)]
        if stop.wait(_CONFIGURATION_POLL_S):
            return []


def run_clock(
    publisher: EventPublisher,
    cells: Iterable[CellConfigured],
    stop: threading.Event,
    interval_s: float | None = None,
) -> None:
    """Send ticks to each cell until `stop` is set. A tick that would be late, after a pause, is left out.

    Raises:
        PublishError: the broker does not confirm the ticks.
    """
    intervals = {cell.cell: interval_s or tick_interval_s(cell) for cell in cells}
    by_name = {cell.cell: cell for cell in cells}
    due = [(next_tick_s(cell, intervals[name], time.time()), name) for name, cell in by_name.items()]
    heapq.heapify(due)
    for name in by_name:
        publisher.publish(ClockTicked(cell=name, time_s=time.time()))
    while not stop.wait(max(due[0][0] - time.time(), 0)):
        _, name = heapq.heappop(due)
        publisher.publish(ClockTicked(cell=name, time_s=time.time()))
        heapq.heappush(due, (next_tick_s(by_name[name], intervals[name], time.time()), name))
