"""`millrace worker`, `executor`, `solver` and `clock`: one service each, in the foreground."""

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.options import DEFAULT_PREFIX, BootstrapServers, CellName, CellsFile, TopicPrefix, bounded

if TYPE_CHECKING:
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
    from pydantic import ValidationError

    from infra.errors import CommandError
    from schemas.codec import describe
    from streams.settings import WorkerSettings
    from streams.worker import run_worker

    try:
        settings = WorkerSettings() if cells is None else WorkerSettings(cells_file=cells)
    except ValidationError as error:
        raise CommandError(f"settings: {describe(error)}") from None
    run_worker(settings)


def executor(
    node: Annotated[
        str | None, typer.Option(help="The node to serve; MILLRACE_NODE if not given.", show_default=False)
    ] = None,
) -> None:
    """Run an executor; its settings are MILLRACE_* variables."""
    from pydantic import ValidationError

    from executors.service import ExecutorSettings, main
    from infra.errors import CommandError
    from schemas.codec import describe

    try:
        settings = ExecutorSettings() if node is None else ExecutorSettings(node=node)
    except ValidationError as error:
        raise CommandError(f"settings: {describe(error)}") from None
    main(settings)


def solver(
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Run a solver, which zones under policy titan need; its other settings are MILLRACE_* variables."""
    from pydantic import ValidationError

    from infra.commands.options import target_of
    from infra.errors import CommandError
    from schemas.codec import describe
    from streams.solver.process import run_solver
    from streams.solver.settings import SolverSettings

    target = target_of(bootstrap_servers, topic_prefix, "solver")
    try:
        settings = SolverSettings(**target.kafka.as_fields(), topic_prefix=target.prefix)
    except ValidationError as error:
        raise CommandError(f"settings: {describe(error)}") from None
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
    from infra.clock import run_clock
    from infra.commands.options import cells_of, target_of
    from infra.errors import CommandError
    from infra.log.publisher import EventPublisher

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


def _configurations(target: "Target", names: set[str], stop: threading.Event) -> "list[CellConfigured]":
    """The cells as their ledgers have them, by whose epoch slots begin; waits for those to come."""
    from infra.deployment.configuring import ledger_configurations

    while True:
        found = ledger_configurations(target, names)
        if found.keys() == names:
            return [found[name] for name in sorted(found)]
        if stop.wait(_CONFIGURATION_POLL_S):
            return []
