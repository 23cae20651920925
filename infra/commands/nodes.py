"""`millrace nodes` and `millrace zone`: an operator's changes of a running cell."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from infra.commands.asking import ask, event_of
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    Json,
    Timeout,
    TopicPrefix,
    cell_of,
    target_of,
)
from infra.commands.output import show
from infra.errors import CommandError
from infra.views.sentences import sentence
from infra.views.words import happening
from schemas.changes import (
    CellChange,
    NodeCordoned,
    NodeLent,
    NodeOrder,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.decisions import EventWithoutEffect
from schemas.topics import CELLS

app = typer.Typer(help="Register, lend, cordon and retire nodes of a running cell.", no_args_is_help=True)

Node = Annotated[str, typer.Argument(help="The node.", metavar="NODE")]
Cell = Annotated[str, typer.Option(help="Its cell.")]

_ORDERS: Mapping[str, tuple[type[NodeOrder], str]] = MappingProxyType(
    {
        "return": (NodeReturned, "Return a lent node to the zone that owns it."),
        "retire": (NodeRetired, "Remove a node from the cell, once no job needs it."),
        "cordon": (NodeCordoned, "Plan nothing new on a node; present plans stay."),
        "uncordon": (NodeUncordoned, "Plan on a cordoned node again."),
    }
)


@app.command()
def register(
    node: Node,
    cell: Cell,
    zone: Annotated[str, typer.Option(help="The zone that will own it.")],
    gpu_type: Annotated[str, typer.Option(help="One of the zone's GPU types.")],
    tariff: Annotated[str, typer.Option(help="One of the cell's tariffs.")],
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Add a node to a zone. It is used as soon as its executor has sent a report."""
    event = event_of(NodeRegistered, cell=cell, node=node, zone=zone, gpu_type=gpu_type, tariff=tariff)
    _send(event, f"node {node}", timeout_s, bootstrap_servers, topic_prefix, json)


@app.command()
def lend(
    node: Node,
    cell: Cell,
    zone: Annotated[str, typer.Option(help="The zone that borrows it.")],
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Lend a node to another zone, once no job of its own zone needs it."""
    event = event_of(NodeLent, cell=cell, node=node, zone=zone)
    _send(event, f"node {node}", timeout_s, bootstrap_servers, topic_prefix, json)


def _command_for(order: type[NodeOrder]) -> Callable[..., None]:
    def command(
        node: Node,
        cell: Cell,
        timeout_s: Timeout = 30.0,
        bootstrap_servers: BootstrapServers = None,
        topic_prefix: TopicPrefix = DEFAULT_PREFIX,
        json: Json = False,
    ) -> None:
        event = event_of(order, cell=cell, node=node)
        _send(event, f"node {node}", timeout_s, bootstrap_servers, topic_prefix, json)

    return command


for _name, (_kind, _help) in _ORDERS.items():
    app.command(_name, help=_help)(_command_for(_kind))


def zone(
    cells: Annotated[Path, typer.Argument(help="YAML file of cells.", metavar="CELLS.yaml")],
    cell: Annotated[str, typer.Option(help="The cell.")],
    zone: Annotated[str, typer.Option(help="The zone to configure.")],
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Change or add a zone of a running cell."""
    found = cell_of(cells, 0.0, cell)
    configured = next((each for each in found.zones if each.id == zone), None)
    if configured is None:
        raise CommandError(f"cell {cell} in {cells} has no zone {zone}")
    event = ZoneConfigured(cell=cell, zone=configured, tariffs=found.tariffs)
    _send(event, f"zone {zone}", timeout_s, bootstrap_servers, topic_prefix, json)


def _send(
    event: CellChange,
    name: str,
    timeout_s: float,
    bootstrap_servers: str | None,
    topic_prefix: str,
    json: bool,
) -> None:
    target = target_of(bootstrap_servers, topic_prefix, "operators")
    for _, decision in ask(target, CELLS, "millrace/nodes", [event], lambda _: name, timeout_s):
        outcome = decision.outcome
        if isinstance(outcome, EventWithoutEffect):
            raise CommandError(f"{name}: {outcome.reason}: {sentence(outcome)}")
        fields = {"type": outcome.TYPE, **outcome.model_dump(mode="json")}
        show(json, fields, happening(decision) or f"{name}: {outcome.TYPE}")
