"""Present state of a cell's loans, folded from its log: users of servers, and reclaims."""

from collections import Counter
from dataclasses import dataclass, field

from infra.figures.nodes import NodeState
from schemas.base import Outcome
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.inference import InferenceLoadReported
from schemas.loans import LoanChanged, ReclaimEnded, ReclaimPlanned


@dataclass
class OpenReclaim:
    """A reclaim of servers that are not all back."""

    owner: str
    reclaim_id: str
    due_s: float
    servers: int
    missing: set[str]
    is_overdue: bool = False


@dataclass
class CellLoans:
    """Folds events and decisions, each in their order."""

    by_server: dict[str, LoanChanged] = field(default_factory=dict)
    """Servers that are on loan, or on their way back."""
    open_reclaims: dict[tuple[str, str], OpenReclaim] = field(default_factory=dict)
    """Reclaims by owner and id."""
    reclaims: Counter[str] = field(default_factory=Counter)
    """Number of ended reclaims, by whether they were in time or late."""
    lent: int = 0
    """Number of loans of a server."""
    loads: dict[str, float] = field(default_factory=dict)
    """Fraction of serving GPUs of each zone that lends."""
    _load_times_s: dict[str, float] = field(default_factory=dict)
    _time_s: float = 0.0

    def fold_event(self, envelope: Envelope) -> None:
        """Fold a ledger event. A load from after the latest tick counts as of the tick, as in the cell."""
        match event := envelope.event:
            case ClockTicked():
                self._time_s = event.time_s
            case InferenceLoadReported() if event.time_s >= self._load_times_s.get(event.zone, 0.0):
                self.loads[event.zone] = event.load
                self._load_times_s[event.zone] = min(event.time_s, self._time_s)

    def fold_decision(self, outcome: Outcome) -> None:
        match outcome:
            case LoanChanged(status="returned"):
                self.by_server.pop(outcome.server, None)
                if outcome.reclaim_id is not None:
                    reclaim = self.open_reclaims.get((outcome.owner, outcome.reclaim_id))
                    if reclaim is not None:
                        reclaim.missing.discard(outcome.server)
            case LoanChanged():
                self.lent += outcome.server not in self.by_server
                self.by_server[outcome.server] = outcome
            case ReclaimPlanned():
                servers = set(outcome.servers)
                self.open_reclaims[outcome.owner, outcome.reclaim_id] = OpenReclaim(
                    outcome.owner, outcome.reclaim_id, outcome.due_s, len(servers), servers
                )
            case ReclaimEnded(status="overdue"):
                reclaim = self.open_reclaims.get((outcome.owner, outcome.reclaim_id))
                if reclaim is not None:
                    reclaim.is_overdue = True
            case ReclaimEnded():
                self.open_reclaims.pop((outcome.owner, outcome.reclaim_id), None)
                self.reclaims[outcome.status] += 1

    @property
    def has_any(self) -> bool:
        """Whether any zone lends, or has lent."""
        return bool(self.lent or self.loads)


@dataclass
class Holding:
    """Servers of one owner that one zone uses."""

    owner: str
    user: str
    servers: int = 0
    draining: int = 0
    """Servers among them that are on their way back."""


def holdings(nodes: dict[str, NodeState], loans: CellLoans) -> list[Holding]:
    """Return the number of servers that each zone uses of each owner, in the order of their names."""
    by_place: dict[tuple[str, str], Holding] = {}
    for node in nodes.values():
        place = node.owner, node.zone
        holding = by_place.setdefault(place, Holding(*place))
        holding.servers += 1
        loan = loans.by_server.get(node.node)
        holding.draining += loan is not None and loan.status == "draining"
    return [by_place[place] for place in sorted(by_place)]
