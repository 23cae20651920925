"""Options that several commands share."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.deployment.deployment_folders import running_address
from infra.errors import CommandError
from infra.kafka.credentials import Credentials, Principal
from infra.log.target import Target
from schemas.cells import CellConfigured
from schemas.kafka_connection import KafkaConnection, KafkaSettings
from schemas.service_base import SETTINGS_FAULTS, described_fault
from schemas.topics import TopicSpec
from streams.replay.heads import KeptHead
from streams.worker.cells_file import load_cells

CELLS_DIRECTORY = Path(__file__).parents[1] / "cells"
LARGEST_SEED = 2**31 - 1


def _refuse_nan(value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise typer.BadParameter("not a number")
    return value


def bounded(*names: str, least: float, most: float, help: str, **settings: Any) -> Any:
    """Return an option for a number from `least` to `most`. A callback refuses NaN, which ranges accept."""
    return typer.Option(*names, min=least, max=most, callback=_refuse_nan, help=help, **settings)


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether an option was given, in place of its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


BootstrapServers = Annotated[
    str | None,
    typer.Option(
        envvar="MILLRACE_BOOTSTRAP_SERVERS",
        help="Kafka's addresses; by default those of the deployment that `millrace up` started.",
        show_default=False,
    ),
]
TopicPrefix = Annotated[
    str, typer.Option(envvar="MILLRACE_TOPIC_PREFIX", help="Prefix of the topics' names.")
]
DataDirectory = Annotated[
    Path | None,
    typer.Option(
        envvar="MILLRACE_DATA_DIR",
        help="Where a deployment keeps its data; by default the user's data folder.",
        show_default=False,
    ),
]
CellsFile = Annotated[Path, typer.Argument(help="YAML file of cells.", metavar="CELLS.yaml")]
CellName = Annotated[str | None, typer.Option("--cell", help="Only this cell.", show_default=False)]
ExpectHead = Annotated[
    list[str] | None,
    typer.Option(
        help="A saved head of the log, as printed by `replay`; may be repeated.",
        metavar="[CELL=]OFFSET:CHAIN",
        show_default=False,
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="A ledger file instead of Kafka, with decisions.jsonl in its folder.",
        metavar="LEDGER.jsonl",
        show_default=False,
    ),
]
LedgerAlone = Annotated[
    Path | None,
    typer.Option(
        "--from", help="A ledger file instead of Kafka.", metavar="LEDGER.jsonl", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Seed = Annotated[int, bounded(least=0, most=LARGEST_SEED, help="Seed of everything that is drawn.")]
Timeout = Annotated[
    float, bounded("--timeout", least=0.1, most=86_400, help="Seconds to wait for the next answer.")
]
Partitions = Annotated[int, bounded(least=1, most=1_000, help="Partitions of each topic but commands.")]
CommandPartitions = Annotated[int, bounded(least=1, most=1_000, help="Partitions of the commands topic.")]

DEFAULT_PREFIX = "millrace"


@contextmanager
def settings_faults() -> Iterator[None]:
    """Raise invalid settings within the block as errors of the command.

    Raises:
        CommandError: in place of a `ValidationError`.
    """
    try:
        yield
    except SETTINGS_FAULTS as error:
        raise CommandError(f"settings: {described_fault(error)}") from None


def target_of(bootstrap_servers: str | None, topic_prefix: str, principal: Principal) -> Target:
    """Return the log to use, after a check that it answers.

    Args:
        bootstrap_servers: Addresses of Kafka; None uses the deployment of `millrace up`.
        topic_prefix: Prefix of the topics.
        principal: Principal to use if `millrace up` has made principals and no MILLRACE_KAFKA_* is set.

    Raises:
        CommandError: the prefix or the settings are invalid, or no deployment runs.
        BrokerError: the cluster does not answer, or refuses the connection.
    """
    try:
        TopicSpec(f"{topic_prefix}.jobs.state", 1, 1)
    except ValueError as error:
        raise CommandError(f"--topic-prefix: {error}") from None
    target = Target(_connection(bootstrap_servers, principal), topic_prefix)
    target.check()
    return target


def kept_heads(texts: list[str] | None, cell: str | None) -> list[KeptHead]:
    """Return the heads of `--expect-head`; those without a cell are of `cell`, if one was chosen.

    Raises:
        CommandError: a head is invalid.
    """
    try:
        kept = [KeptHead.parse(text) for text in texts or []]
    except ValueError as error:
        raise CommandError(f"--expect-head: {error}") from None
    return [replace(each, cell=cell) if each.cell is None else each for each in kept]


def _connection(bootstrap_servers: str | None, principal: Principal) -> KafkaConnection:
    with settings_faults():
        if bootstrap_servers is not None:
            return KafkaSettings(bootstrap_servers=bootstrap_servers)
        address = running_address()
        if address is None:
            raise CommandError(
                "no deployment runs here: start one with `millrace up`, or give --bootstrap-servers"
            )
        # Explicit settings take precedence.
        if address.credentials is None or any(name.startswith("MILLRACE_KAFKA_") for name in os.environ):
            return KafkaSettings(bootstrap_servers=address.bootstrap_servers)
        return Credentials(address.credentials).connection(principal, address.bootstrap_servers)


def cell_of(path: Path, epoch_s: float, name: str | None) -> CellConfigured:
    """Return the cell of this name in a file, or its only one.

    Raises:
        CellsFileError: the file is invalid.
        CommandError: the file has no such cell, or several and no name was given.
    """
    cells = load_cells(path, epoch_s)
    names = ", ".join(cell.cell for cell in cells)
    if name is None:
        if len(cells) > 1:
            raise CommandError(f"the file has several cells, choose one of {names} with --cell")
        return cells[0]
    for cell in cells:
        if cell.cell == name:
            return cell
    raise CommandError(f"the file has no cell {name}, it has {names}")
