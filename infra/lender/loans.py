"""A lender's servers: the states of their loans, and requests to the cell without an answer."""

from dataclasses import dataclass, field

from schemas.loans import LoanStatus


@dataclass
class LoanBook:
    """States of the zone's servers, as decided by the cell, and offers and reclaims without an answer."""

    owned: dict[str, None]
    """Servers of the zone in the order of the configuration."""
    away: set[str] = field(default_factory=set)
    """Servers in another zone at present, as a loan or moved by an operator."""
    on_loan: set[str] = field(default_factory=set)
    """Lent servers that are not reclaimed; they may not have left yet."""
    draining: set[str] = field(default_factory=set)
    """Lent servers on their way back."""
    offers: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    """Offers without an answer: time and servers, by the event's id."""
    reclaims: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Reclaims without an answer: time and number of servers, by the event's id."""

    @property
    def offered(self) -> set[str]:
        """Servers of offers without an answer."""
        return {server for _, servers in self.offers.values() for server in servers} & self.owned.keys()

    @property
    def unavailable(self) -> set[str]:
        """Servers that do not serve the zone, or may soon not."""
        return (self.away | self.on_loan | self.draining | self.offered) & self.owned.keys()

    @property
    def reclaimable(self) -> int:
        """Most servers that a reclaim may request."""
        return max(len(self.on_loan) - self.requested, 0)

    @property
    def requested(self) -> int:
        """Number of reclaimed servers that the cell has not chosen yet."""
        return sum(servers for _, servers in self.reclaims.values())

    def update(self, server: str, status: LoanStatus) -> None:
        self.on_loan.discard(server)
        self.draining.discard(server)
        match status:
            case "on_loan":
                self.on_loan.add(server)
            case "draining":
                self.draining.add(server)
