"""Simulating a recorded ledger: what came from outside comes again, what decisions led to happens anew."""

import math
from collections.abc import Iterator
from dataclasses import replace

from infra.simulation.agenda import Agenda
from infra.simulation.recording import ID_PREFIX, Recording
from infra.simulation.simulator import SOURCE, sent_at
from infra.simulation.virtual_fleet import VirtualFleet
from schemas.cells import CellConfigured
from schemas.codec import Decision, Envelope
from schemas.fleet import (
    FleetEvent,
    NodeHeard,
    NodeHeartbeat,
    NodeOffline,
    NodeOnline,
    NodeSilent,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.registry import Event
from schemas.solves import SolveFinished
from streams.cell import Cell, LedgerEvent

Step = tuple[LedgerEvent, list[Decision]]
"""An event of the new ledger and what was decided because of it."""


class LedgerSimulation:
    """One cell under a configuration that may not be the ledger's.

    Bids, withdrawals, requests for quotes, vendors' quotes, ticks and what was said of nodes come again, in
    the ledger's order and with its ids. Reports of runs and answers of solvers come from virtual ones; of
    recorded reports it stays that the node was heard. A node that was lost reports nothing until it is back,
    and nodes that the ledger does not know are always there.
    """

    def __init__(self, configuration: CellConfigured, recording: Recording, pace: float) -> None:
        """See `VirtualExecutor` for `pace`."""
        self._configuration = configuration
        self._recording = recording
        self._cell = Cell(configuration.cell)
        self._offset = 0
        self._agenda = Agenda()
        self._fleet = VirtualFleet(configuration, pace, self._agenda, self._there_until_s)
        executors = self._fleet.executors
        self._added = {node: executors[node] for node in executors if not recording.knows(node)}
        self._own_models = {
            node.id: zone.base_model for zone in recording.configuration.zones for node in zone.nodes
        }

    def feed(self, time_s: float, envelope: Envelope) -> Iterator[Step]:
        """Take the recorded event of this time, after everything that is due before it."""
        yield from self.run_until(time_s)
        match event := envelope.event:
            case CellConfigured() if self._cell.configuration is None:
                yield self._handle(time_s, replace(envelope, event=self._configuration, stored=None))
                for executor in self._added.values():
                    yield self._simulated(time_s, executor.online())
            case RunStarted() | RunProgressed() | RunFinished() | RunFailed():
                if self._cell.awaits_node(event.node):
                    yield self._simulated(time_s, NodeHeard(cell=event.cell, node=event.node))
            case SolveFinished():
                pass
            case NodeOnline() | NodeHeartbeat() | NodeHeard() | NodeSilent() | NodeOffline():
                if event.node in self._fleet.executors:
                    yield self._handle(time_s, self._of_node(envelope, event))
            case _:
                yield self._handle(time_s, envelope)

    def run_until(self, time_s: float) -> Iterator[Step]:
        """Let happen what is due by now."""
        while self._agenda.next_s <= time_s:
            yield self._simulated(*self._agenda.pop())

    def _of_node(self, envelope: Envelope, event: FleetEvent) -> Envelope:
        """A node that serves its zone's base model serves the one that the zone has now."""
        if isinstance(event, NodeOnline) and event.base_model == self._own_models.get(event.node):
            online = self._fleet.executors[event.node].online()
            return envelope if online == event else replace(envelope, event=online, stored=None)
        return envelope

    def _there_until_s(self, node: str, time_s: float) -> float | None:
        return math.inf if node in self._added else self._recording.there_until_s(node, time_s)

    def _simulated(self, time_s: float, event: Event) -> Step:
        id = f"{ID_PREFIX}{self._recording.generation}-{self._offset}"
        time = sent_at(max(time_s, self._configuration.epoch_s))
        return self._handle(time_s, Envelope(id, SOURCE, time, event))

    def _handle(self, time_s: float, envelope: Envelope) -> Step:
        entry = LedgerEvent(self._offset, envelope)
        self._offset += 1
        decisions = self._cell.handle(entry)
        for decision in decisions:
            self._fleet.carry_out(time_s, decision)
        return entry, decisions
