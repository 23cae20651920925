"""The present state of a cell's loans, folded from its log: who uses which server, what is wanted back."""

from collections import Counter
from dataclasses import dataclass, field

from infra.views.nodes import Node
from schemas.base import Outcome
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.inference import InferenceLoadReported
from schemas.loans import LoanChanged, ReclaimEnded, ReclaimPlanned


@dataclass
class Reclaim:
    """Servers that are wanted back, and not all of which are."""

    owner: str
    reclaim_id: str
    due_s: float
    servers: int
    missing: set[str]
    is_overdue: bool = False


@dataclass
class Loans:
    """Takes events and decisions, each in their order."""

    by_server: dict[str, LoanChanged] = field(default_factory=dict)
    """Servers that are on loan, or on their way back."""
    open_reclaims: dict[tuple[str, str], Reclaim] = field(default_factory=dict)
    """By owner and id."""
    reclaims: Counter[str] = field(default_factory=Counter)
    """Those that are over, by whether they were in time or late."""
    lent: int = 0
    """How often a server was lent."""
    loads: dict[str, float] = field(default_factory=dict)
    """By zone that lends, the fraction of its GPUs that serve."""
    _load_times_s: dict[str, float] = field(default_factory=dict)
    _time_s: float = 0.0

    def take_event(self, envelope: Envelope) -> None:
        """Take a ledger event. A load that is stamped ahead counts as of the latest tick, as for the cell."""
        match event := envelope.event:
            case ClockTicked():
                self._time_s = event.time_s
            case InferenceLoadReported() if event.time_s >= self._load_times_s.get(event.zone, 0.0):
                self.loads[event.zone] = event.load
                self._load_times_s[event.zone] = min(event.time_s, self._time_s)

    def take_decision(self, outcome: Outcome) -> None:
        """Take a decision."""
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
                self.open_reclaims[outcome.owner, outcome.reclaim_id] = Reclaim(
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
        """Whether anybody lends, or has lent."""
        return bool(self.lent or self.loads)


@dataclass
class Holding:
    """The servers of one owner that one zone uses."""

    owner: str
    user: str
    servers: int = 0
    draining: int = 0
    """Of these, on their way back."""


def holdings(nodes: dict[str, Node], loans: Loans) -> list[Holding]:
    """How many servers each zone uses of each owner, in the order of their names."""
    by_place: dict[tuple[str, str], Holding] = {}
    for node in nodes.values():
        place = node.owner, node.zone
        holding = by_place.setdefault(place, Holding(*place))
        holding.servers += 1
        loan = loans.by_server.get(node.node)
        holding.draining += loan is not None and loan.status == "draining"
    return [by_place[place] for place in sorted(by_place)]
