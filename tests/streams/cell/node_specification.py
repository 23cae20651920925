"""A specification of the states of nodes: the tables of `docs/cell/changes.md`, and what leads from row to
row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.base import Event, Outcome
from schemas.changes import (
    CellChange,
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.decisions import EventIgnored, NodeMoved
from schemas.fleet import CommandRefused, FleetEvent, NodeOffline, NodeSilent, SignOfLife
from schemas.loans import OfferAnswered, ReclaimPlanned

PAGE = Path(__file__).parents[3] / "docs" / "cell" / "changes.md"


def table(title: str) -> dict[str, dict[str, str]]:
    """Return a table of the page: its cells by first column and title of the column."""
    lines = iter(PAGE.read_text().splitlines())
    _, *columns = _cells(next(line for line in lines if line.startswith(f"| {title} |")))
    next(lines)
    rows = {}
    while (line := next(lines)).startswith("|"):
        state, *cells = _cells(line)
        rows[state] = dict(zip(columns, cells, strict=True))
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]


MEMBERSHIP, CONNECTION = table("membership"), table("connection")


@dataclass
class SpecifiedNode:
    """State of a node."""

    owner: str
    serves: str
    connection: str = "assumed"
    membership: str = "owned"
    scheduling: str = "open"

    def join(self, zone: str, commanded: Mapping[str, str], asks_more: bool) -> None:
        """Come to a zone."""
        self.serves = zone
        if zone not in commanded:
            self.connection = "assumed"
        elif asks_more:
            self.connection = "awaited"

    def happens(self, column: str) -> None:
        """Go on to the membership after an event, unless the page has a reason against it."""
        after = MEMBERSHIP[self.membership][column]
        self.membership = after if after in MEMBERSHIP or after == "gone" else self.membership


class NodeSpecification:
    """Nodes of a cell whose zones under commands are all of one base model and policy."""

    def __init__(self, commanded: Mapping[str, str]) -> None:
        """
        Args:
            commanded: base model by zone, of the zones whose policies have commands.
        """
        self.nodes: dict[str, SpecifiedNode] = {}
        self.commanded = commanded

    def join(self, node: str, zone: str, is_first: bool = False) -> None:
        self.nodes[node] = SpecifiedNode(zone, zone)
        self.nodes[node].join(zone, self.commanded, asks_more=not is_first)

    def apply(self, event: Event, outcomes: Sequence[Outcome]) -> None:
        """Apply an event, with the choices and moves that were decided on it."""
        is_refused = any(isinstance(outcome, EventIgnored) for outcome in outcomes)
        match event:
            case FleetEvent() if event.node in self.nodes:
                self._connect(self.nodes[event.node], event)
            case CellChange() if not is_refused:
                self._change(event)
        lent = [
            server for outcome in outcomes if isinstance(outcome, OfferAnswered) for server in outcome.lent
        ]
        for server in lent:
            self.nodes[server].happens("offered")
        for outcome in outcomes:
            match outcome:
                case ReclaimPlanned():
                    for server in outcome.servers:
                        self.nodes[server].happens("reclaimed")
                case NodeMoved(from_zone=str() as from_zone):
                    self._move(outcome, from_zone, is_offered=outcome.node in lent)

    @property
    def described(self) -> dict[str, Any]:
        """The part of `Cell.describe` that is specified."""
        return {name: vars(node) for name, node in self.nodes.items()}

    def _move(self, moved: NodeMoved, from_zone: str, is_offered: bool) -> None:
        node = self.nodes[moved.node]
        if not is_offered:
            assert node.membership not in ("owned", "lent", "on_loan"), "a node that stays does not move"
            node.happens("free")
        if moved.to_zone is None:
            assert node.membership == "gone"
            del self.nodes[moved.node]
            return
        assert (moved.to_zone == node.owner) == (node.membership == "owned")
        known = self.commanded.get(from_zone)
        node.join(moved.to_zone, self.commanded, asks_more=self.commanded.get(moved.to_zone) != known)

    def _connect(self, node: SpecifiedNode, event: FleetEvent) -> None:
        model = self.commanded.get(node.serves)
        if model is None:
            return
        match event:
            case SignOfLife(base_model=announced):
                column = "announces that it is fit" if announced == model else "announces that it is unfit"
            case NodeOffline() | NodeSilent():
                column = "goes offline or silent"
            case CommandRefused():
                column = "refuses a command"
            case _:
                column = "reports of a run"
        node.connection = CONNECTION[node.connection][column]

    def _change(self, event: CellChange) -> None:
        match event:
            case NodeCordoned():
                self.nodes[event.node].scheduling = "cordoned"
            case NodeUncordoned():
                self.nodes[event.node].scheduling = "open"
            case NodeRegistered() if event.node in self.nodes:
                self.nodes[event.node].happens("node.registered as it is")
            case NodeRegistered():
                self.join(event.node, event.zone)
            case NodeLent() | NodeReturned() | NodeRetired():
                self.nodes[event.node].happens(event.TYPE.removeprefix("millrace.").removesuffix(".v1"))
            case ZoneConfigured():
                listed = {node.id for node in event.zone.nodes}
                for node in self._owned_by(event.zone.id):
                    name = "node.registered as it is" if node in listed else "node.retired"
                    self.nodes[node].happens(name)
                for node in sorted(listed - self.nodes.keys()):
                    self.join(node, event.zone.id)

    def _owned_by(self, zone: str) -> Iterator[str]:
        return (name for name, node in self.nodes.items() if node.owner == zone)
