"""A specification of loans: the decisions about them that must follow from events, moves and choices."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.base import Outcome
from schemas.decisions import NodeMoved, NodeStatusChanged
from schemas.loans import LoanChanged, LoanStatus, OfferAnswered, ReclaimEnded, ReclaimPlanned

_LEAVES = {"retired": True, "returned": True, "registered": False}
"""Whether a server on loan is to leave after a decision with this reason."""


@dataclass
class LentServer:
    """A server on loan."""

    owner: str
    borrower: str
    notice_s: float
    is_leaving: bool = False
    leaves_the_cell: bool = False
    due_s: float | None = None
    reclaim_id: str | None = None

    def changed(self, server: str, status: LoanStatus, time_s: float, due_s: float | None) -> LoanChanged:
        return LoanChanged(
            server=server,
            owner=self.owner,
            borrower=self.borrower,
            status=status,
            since_s=time_s,
            due_s=due_s,
            reclaim_id=self.reclaim_id,
        )


@dataclass
class LoanSpecification:
    """Loans of a cell, as its other decisions imply them."""

    servers: dict[str, LentServer] = field(default_factory=dict)
    reclaims: dict[str, ReclaimPlanned] = field(default_factory=dict)
    """Reclaims that wait for servers, by id."""

    def check(self, before_s: float, time_s: float, notice_s: float, outcomes: Sequence[Outcome]) -> None:
        """Apply the decisions on one event, whose decisions about loans must be as specified; see `step`."""
        decided = [outcome for outcome in outcomes if isinstance(outcome, LoanChanged | ReclaimEnded)]
        expected = self.step(before_s, time_s, notice_s, outcomes)
        assert sorted(map(repr, decided)) == sorted(map(repr, expected))

    def step(
        self, before_s: float, time_s: float, notice_s: float, outcomes: Sequence[Outcome]
    ) -> list[LoanChanged | ReclaimEnded]:
        """Return the decisions about loans that belong to the other decisions on one event.

        Args:
            before_s: time of the cell before the event.
            notice_s: the configured notice.
        """
        expected: list[LoanChanged | ReclaimEnded] = []
        for id, planned in self.reclaims.items():
            if before_s <= planned.due_s < time_s:
                expected.append(self._ended(id, "overdue", time_s))
        were_leaving = {server: lent.is_leaving for server, lent in self.servers.items()}
        for outcome in outcomes:
            match outcome:
                case OfferAnswered():
                    to = {move.node: move.to_zone for move in outcomes if isinstance(move, NodeMoved)}
                    for server in outcome.lent:
                        lent = LentServer(outcome.owner, str(to[server]), notice_s)
                        self.servers[server], were_leaving[server] = lent, False
                        expected.append(lent.changed(server, "on_loan", time_s, None))
                case ReclaimPlanned():
                    assert outcome.due_s >= time_s + self.longest_notice_s
                    self.reclaims[outcome.reclaim_id] = outcome
                    for server in outcome.servers:
                        lent = self.servers[server]
                        assert not lent.is_leaving, "a reclaim takes servers that stay"
                        lent.due_s, lent.reclaim_id = outcome.due_s, outcome.reclaim_id
                        expected.append(lent.changed(server, "draining", time_s, lent.due_s))
                case NodeStatusChanged(reason="retired" | "returned" | "registered"):
                    if (server := outcome.node) in self.servers:
                        self.servers[server].is_leaving = _LEAVES[outcome.reason]
                        self.servers[server].leaves_the_cell = outcome.reason == "retired"
                case NodeMoved() if outcome.node in self.servers and outcome.reason != "lent":
                    assert self.servers[outcome.node].is_leaving
                    expected.append(
                        self.servers[outcome.node].changed(outcome.node, "returned", time_s, None)
                    )
                    id = self.servers.pop(outcome.node).reclaim_id
                    if id is not None and not self.missing(id):
                        status = "late" if time_s > self.reclaims[id].due_s else "in_time"
                        expected.append(self._ended(id, status, time_s))
                        del self.reclaims[id]
        for server, lent in self.servers.items():
            if lent.reclaim_id is not None:
                assert lent.is_leaving, "a reclaimed server is on its way until it is back"
            elif lent.is_leaving != were_leaving[server]:
                lent.due_s = time_s + lent.notice_s if lent.is_leaving else None
                status = "draining" if lent.is_leaving else "on_loan"
                expected.append(lent.changed(server, status, time_s, lent.due_s))
        return expected

    @property
    def longest_notice_s(self) -> float:
        """Notice that a reclaim needs: of the servers that may be reclaimed, the longest."""
        return max((lent.notice_s for lent in self.servers.values() if not lent.is_leaving), default=0.0)

    def missing(self, reclaim_id: str) -> tuple[str, ...]:
        """Return the servers that a reclaim waits for."""
        return tuple(sorted(server for server, lent in self.servers.items() if lent.reclaim_id == reclaim_id))

    @property
    def due_to_leave(self) -> dict[str, float | None]:
        """The times by which the servers must be free that are to leave their borrowers."""
        return {
            server: lent.due_s if lent.reclaim_id is not None and not lent.leaves_the_cell else None
            for server, lent in self.servers.items()
            if lent.is_leaving
        }

    def _ended(self, id: str, status: str, time_s: float) -> ReclaimEnded:
        return ReclaimEnded(
            owner=self.reclaims[id].owner,
            reclaim_id=id,
            status=status,
            missing=self.missing(id) if status == "overdue" else (),
            late_s=max(time_s - self.reclaims[id].due_s, 0.0),
        )
