"""A lender's servers: who has them, and what was asked of the cell since it last said so."""

from dataclasses import dataclass, field

from schemas.loans import LoanStatus


@dataclass
class Loans:
    """Where the zone's servers are, as far as the cell has said, and what was asked of it since."""

    owned: dict[str, None]
    """In the order of the configuration."""
    away: set[str] = field(default_factory=set)
    """Serve another zone at present, as a loan or because an operator said so."""
    on_loan: set[str] = field(default_factory=set)
    """Lent, and nobody has asked for them; they may not have left yet."""
    draining: set[str] = field(default_factory=set)
    """Lent, and on their way back."""
    offers: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    """Not answered: by the event's id, when it was made and what was offered."""
    reclaims: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Not answered: by the event's id, when it was made and how many servers are wanted."""

    @property
    def offered(self) -> set[str]:
        """Those that wait for an answer."""
        return {server for _, servers in self.offers.values() for server in servers} & self.owned.keys()

    @property
    def gone(self) -> set[str]:
        """Not at the zone's disposal, or soon not."""
        return (self.away | self.on_loan | self.draining | self.offered) & self.owned.keys()

    @property
    def reclaimable(self) -> int:
        """How many servers a reclaim may ask for."""
        return max(len(self.on_loan) - self.wanted, 0)

    @property
    def wanted(self) -> int:
        """How many the cell has been asked for and has not chosen yet."""
        return sum(servers for _, servers in self.reclaims.values())

    def follow(self, server: str, status: LoanStatus) -> None:
        """A loan has this status now."""
        self.on_loan.discard(server)
        self.draining.discard(server)
        match status:
            case "on_loan":
                self.on_loan.add(server)
            case "draining":
                self.draining.add(server)
