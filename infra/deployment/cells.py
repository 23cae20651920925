"""Cells of a log: their first configurations, and their present states."""

from collections.abc import Iterator
from dataclasses import dataclass

from infra.log.reader import LogReader
from infra.log.target import Target
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured, Zone
from schemas.changes import NodeRegistered, ZoneConfigured
from schemas.codec import Decision, Envelope, InvalidRecordError, decode_decision, decode_event
from schemas.decisions import NodeMoved, ZoneAccepted
from schemas.topics import DECISIONS, LEDGER
from streams.kafka.records import ReadRecord


@dataclass(frozen=True)
class PresentCell:
    """A cell after all changes that it has accepted."""

    configuration: CellConfigured
    """First configuration: its slots and its timeout hold."""
    zones: dict[str, Zone]
    """Latest configuration of each zone, by id."""
    zone_of: dict[str, str]
    """Zone that each node serves."""
    owner_of: dict[str, str]
    """Zone that owns each node."""
    gpu_type_of: dict[str, str]
    """GPU type of each node, by its owner's name for it."""


def first_layout(first: CellConfigured) -> PresentCell:
    """Return the state of a cell under its first configuration."""
    zones = {zone.id: zone for zone in first.zones}
    zone_of = {node.id: zone.id for zone in first.zones for node in zone.nodes}
    gpu_type_of = {node.id: node.gpu_type for zone in first.zones for node in zone.nodes}
    return PresentCell(first, zones, zone_of, dict(zone_of), gpu_type_of)


def ledger_configurations(target: Target, cells: set[str]) -> dict[str, CellConfigured]:
    """Return the first configurations of those of `cells` that have one."""
    found: dict[str, CellConfigured] = {}
    for envelope in _events(target, CellConfigured):
        if isinstance(envelope.event, CellConfigured) and envelope.event.cell in cells:
            found.setdefault(envelope.event.cell, envelope.event)
            if found.keys() == cells:
                break
    return found


def present_cells(target: Target) -> dict[str, PresentCell]:
    """Return every cell of a log, by name.

    Raises:
        ReadError: the log cannot be read.
    """
    # Decisions are read first: the cause of each is then among the events.
    # A worker that was killed leaves duplicates.
    with LogReader(target, [target.topic(DECISIONS)], "beginning") as reader:
        decided = {decision.id: decision for decision in layout_changes(reader.to_end())}
    cells: dict[str, PresentCell] = {}
    changes: dict[tuple[str, str], Zone] = {}
    registered: dict[tuple[str, str], NodeRegistered] = {}
    for envelope in _events(target, CellConfigured, ZoneConfigured, NodeRegistered):
        match envelope.event:
            case CellConfigured() as first:
                cells.setdefault(first.cell, first_layout(first))
            case ZoneConfigured() as change:
                changes.setdefault((change.cell, envelope.id), change.zone)
            case NodeRegistered() as registration:
                registered.setdefault((registration.cell, envelope.id), registration)
    for decision in decided.values():
        cell = cells.get(decision.cell)
        if cell is None:
            continue  # its policies are not installed here
        match decision.outcome:
            case ZoneAccepted(zone=zone):
                cell.zones[zone] = changes[decision.cell, decision.cause]
                cell.gpu_type_of.update((node.id, node.gpu_type) for node in cell.zones[zone].nodes)
            case NodeMoved(node=node, to_zone=None):
                for known in (cell.zone_of, cell.owner_of, cell.gpu_type_of):
                    known.pop(node, None)
            case NodeMoved(node=node, from_zone=from_zone, to_zone=str() as zone):
                cell.zone_of[node] = zone
                if from_zone is None:
                    cell.owner_of[node] = zone
                    if (decision.cell, decision.cause) in registered:
                        cell.gpu_type_of[node] = registered[decision.cell, decision.cause].gpu_type
    return cells


def layout_changes(records: Iterator[ReadRecord]) -> Iterator[Decision]:
    """Yield the decisions that change a cell's zones, or the zones of its nodes."""
    for record in records:
        if _is_of(record, NodeMoved, ZoneAccepted):
            try:
                yield decode_decision(record.value or b"")
            except InvalidRecordError:
                continue  # replay reports it


def _events(target: Target, *types: type[Event]) -> Iterator[Envelope]:
    """Yield the ledger's events of some types."""
    with LogReader(target, [target.topic(LEDGER)], "beginning") as reader:
        for record in reader.to_end():
            if _is_of(record, *types):
                try:
                    yield decode_event(record.value, record.headers)
                except InvalidRecordError:
                    continue  # replay reports it


def _is_of(record: ReadRecord, *types: type[Event | Outcome]) -> bool:
    """Return whether a record is of one of the types, by its header, without decoding it."""
    ce_type = dict(record.headers).get("ce_type")
    return any(ce_type == kind.TYPE.encode() for kind in types)
