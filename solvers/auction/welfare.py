"""The welfare of a zone (objective 4): of plans as admitted, and what reality has made of it, by cause."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Welfare:
    """Running sums in whole micros.

    A plan is worth its bid less its vendor's price and its operational cost, as they were when it was
    admitted. The dual bound covers that, plan by plan, and knows nothing of what happens later; so what
    happens later is added up apart. Each cause holds what it has added to the planned welfare, negative where
    it took something.
    """

    planned_micros: int = 0
    """Of all plans as admitted, but for those of jobs that were withdrawn."""
    finished_early_micros: int = 0
    """Operation that jobs did not need, since their work was done before their plan was over."""
    replanned_micros: int = 0
    """What plans that were made again, or cut short, cost less to run than those before them."""
    refunded_micros: int = 0
    """Jobs that could not be finished by no fault of their own: their bids, less operation not spent."""
    failed_micros: int = 0
    """Likewise, of jobs that ended by the fault of their task, its data or its declaration."""
    withdrawn_micros: int = 0
    """Vendors' prices of jobs that were withdrawn, less what new plans for them had added to their cost."""

    @property
    def realised_micros(self) -> int:
        """As things stand: what is still planned counts as planned."""
        return (
            self.planned_micros
            + self.finished_early_micros
            + self.replanned_micros
            + self.refunded_micros
            + self.failed_micros
            + self.withdrawn_micros
        )

    def state(self) -> dict[str, Any]:
        """Everything, of types that msgpack writes: amounts may outgrow 64 bits over the years."""
        return {name: str(micros) for name, micros in asdict(self).items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a state."""
        for name, micros in state.items():
            setattr(self, name, int(micros))
