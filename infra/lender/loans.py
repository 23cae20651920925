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
    lent: dict[str, LoanStatus] = field(default_factory=dict)
    """Statuses of lent servers; they may not have left yet."""
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
        return (self.away | self.lent.keys() | self.offered) & self.owned.keys()

    @property
    def reclaimable(self) -> int:
        """Most servers that a reclaim may request."""
        return max(self.count("on_loan") - self.requested, 0)

    @property
    def requested(self) -> int:
        """Number of reclaimed servers that the cell has not chosen yet."""
        return sum(servers for _, servers in self.reclaims.values())

    def count(self, status: LoanStatus) -> int:
        """Return the number of servers whose loan has a status."""
        return sum(each == status for each in self.lent.values())

    def update(self, server: str, status: LoanStatus) -> None:
        """Set the status of a server's loan."""
        if status == "returned":
            self.lent.pop(server, None)
        else:
            self.lent[server] = status
