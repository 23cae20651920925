"""Everything around a cell that carries out its decisions: executors, and a solver."""

import gc
import math
from collections.abc import Callable

from infra.simulation.agenda import Agenda, Rank
from infra.simulation.virtual_executor import VirtualExecutor
from schemas.cells import CellConfigured
from schemas.codec import Decision
from schemas.commands import SlotAssigned
from schemas.solves import SolveRequested

Presence = Callable[[str, float], float | None]
"""Until when a node is there that is there at this moment, in seconds; None if it is not."""


def always_there(_node: str, _time_s: float) -> float | None:
    """The presence of nodes that are never lost."""
    return math.inf


class VirtualFleet:
    """What becomes of decisions, as events on an agenda."""

    def __init__(
        self, cell: CellConfigured, pace: float, agenda: Agenda, until_s: Presence = always_there
    ) -> None:
        """See `VirtualExecutor` for `pace`. All executors of a cell share their checkpoints."""
        samples_done: dict[str, int] = {}
        self.executors = {
            node.id: VirtualExecutor(cell.cell, node.id, zone.base_model, pace, samples_done)
            for zone in cell.zones
            for node in zone.nodes
        }
        self._agenda = agenda
        self._until_s = until_s

    def carry_out(self, time_s: float, decision: Decision) -> None:
        """Have done what a decision of this moment asks executors or solvers to do."""
        match outcome := decision.outcome:
            case SlotAssigned():
                until_s = self._until_s(outcome.node, max(outcome.slot_start_s, time_s))
                if until_s is None:
                    return
                for report_s, report in self.executors[outcome.node].carry_out(outcome, until_s):
                    self._agenda.add(max(report_s, time_s), Rank.REPORT, report)
            case SolveRequested():
                from solvers.auction.titan import solve_batch  # loads Pyomo, which no other policy needs

                self._agenda.add(time_s, Rank.ANSWER, solve_batch(decision.cell, outcome))
                # A simulation looks for no cycles on its own, and a solver's model is a large one.
                gc.collect(0)
