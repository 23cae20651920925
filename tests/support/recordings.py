"""Recorded ledgers of the small cell of `tests.support.cells`, with nodes that come and go."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from infra.simulation.recording import LedgerRecording, timed
from infra.simulation.simulator import sent_at
from infra.simulation.what_if import LedgerSimulation
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.fleet import NodeSilent
from streams.cell.ledger_event import LedgerEvent
from streams.replay.files import ledger_line
from tests.support.cells import EPOCH_S, SLOT_S, node_seen, online

TICK_S = 2.0

Absences = Mapping[str, tuple[float, float]]
"""By node, the times in slots at which its silence begins and ends."""


def asked(
    cell: CellConfigured, slots: int, absences: Absences, others: Iterable[tuple[float, Event]]
) -> list[LedgerEvent]:
    """Return the events that such a cell gets: ticks, events about nodes, and `others` at their slots."""
    nodes = [node.id for zone in cell.zones for node in zone.nodes]
    events: list[tuple[float, int, Event]] = [(cell.epoch_s, 0, cell)]
    events += [(cell.epoch_s, 0, online(node)) for node in nodes]
    for number in range(int(slots * SLOT_S / TICK_S) + 1):
        time_s = EPOCH_S + number * TICK_S
        events.append((time_s, 2, ClockTicked(cell=cell.cell, time_s=time_s)))
    for node, (from_slot, to_slot) in absences.items():
        found_s = EPOCH_S + from_slot * SLOT_S + cell.node_timeout_s
        if found_s < EPOCH_S + to_slot * SLOT_S:
            lost = NodeSilent(cell=cell.cell, node=node, silent_s=cell.node_timeout_s)
            events.append((found_s, 1, lost))
        if to_slot < slots:
            events.append((EPOCH_S + to_slot * SLOT_S, 1, node_seen(node)))
    events += [(EPOCH_S + slot * SLOT_S, 3, event) for slot, event in others]
    events.sort(key=lambda entry: entry[:2])
    return [
        LedgerEvent(offset, Envelope(f"e{offset}", "test", sent_at(time_s), event))
        for offset, (time_s, _, event) in enumerate(events)
    ]


def played(cell: CellConfigured, outside: list[LedgerEvent]) -> tuple[list[LedgerEvent], list[Decision]]:
    """A whole log: with the reports of executors that do what the cell decides while they are there."""
    recording = LedgerRecording(cell)
    for time_s, entry in timed(outside):
        recording.add(time_s, entry)
    simulation = LedgerSimulation(cell, recording, pace=1.0)
    steps = [step for time_s, entry in timed(outside) for step in simulation.feed(time_s, entry.envelope)]
    steps += simulation.run_until(recording.end_s)
    return [entry for entry, _ in steps], [decision for _, decisions in steps for decision in decisions]


def write(path: Path, ledger: Iterable[LedgerEvent]) -> Path:
    """A ledger as a file."""
    path.write_bytes(b"".join(map(ledger_line, ledger)))
    return path
