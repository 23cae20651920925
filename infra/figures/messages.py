"""Messages of nodes, folded from a cell's events: a decision only names the event or the run."""

from dataclasses import dataclass, field

from schemas.codec import Decision
from schemas.decisions import NodeStatusChanged
from schemas.fleet import CommandRefused, NodeOffline, RunFailed
from streams.cell.ledger_event import LedgerEvent

KEPT = 1_000
"""Most messages kept after their decision, for later decisions on the same run."""

_Run = tuple[str, str]


@dataclass
class Messages:
    """Folds events and decisions. Messages of events whose decisions are not folded yet are all kept."""

    _texts: dict[str | _Run, tuple[int, str]] = field(default_factory=dict)
    """Ledger offsets and texts, by the id of the event or by node and id of the run."""

    def fold_event(self, entry: LedgerEvent) -> None:
        """Keep the message of a ledger event. The first message about a run counts."""
        match event := entry.envelope.event:
            case NodeOffline():
                self._note(entry.offset, entry.envelope.id, event.reason)
            case RunFailed():
                self._note(entry.offset, (event.node, event.run_id), event.error)
            case CommandRefused():
                for run in event.runs:
                    self._note(entry.offset, (event.node, run.run_id), event.detail)

    def fold_decision(self, decision: Decision) -> None:
        """Drop the oldest messages beyond `KEPT` from events before this decision's."""
        offset, _ = decision.place
        while len(self._texts) > KEPT and self._texts[first := next(iter(self._texts))][0] < offset:
            del self._texts[first]

    def of(self, decision: Decision) -> str:
        """Return the message of a node that a decision is about; empty without one."""
        facts = getattr(decision.outcome, "facts", {})
        match decision.outcome, facts:
            case NodeStatusChanged(reason="offline"), _:
                key: str | _Run = decision.cause
            case _, {"node": str(node), "run_id": str(run_id)}:
                key = node, run_id
            case _:
                return ""
        _, text = self._texts.get(key, (0, ""))
        return text

    def _note(self, offset: int, key: str | _Run, text: str) -> None:
        if text:
            self._texts.setdefault(key, (offset, text))
