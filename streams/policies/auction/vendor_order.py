"""An order of pre-processing: from a job's admission, or the failure of an earlier one, to its end."""

from dataclasses import dataclass, replace
from typing import Any, Self

from schemas.lora import Delivery

MOST_ORDERS = 3
"""Most orders for one job."""
ORDER_BYTES = 3_584
"""Most bytes of an order in a snapshot: a path of 512 characters of 4 bytes, 5 ids and 2 numbers."""


@dataclass(frozen=True)
class VendorOrder:
    """The latest order for a job. No slot of the job is assigned before its delivery."""

    order_id: str
    vendor: str
    price_micros: int
    """Price of the vendor (q_in)."""
    due_slot: int
    """First slot that may be planned: a delivery is late from its start on."""
    tried: tuple[str, ...] = ()
    """Vendors of earlier orders."""
    delivery: Delivery | None = None
    """Accepted delivery, for which the vendor is paid."""
    is_closed: bool = False
    """Whether it has ended without a payment."""

    @property
    def is_open(self) -> bool:
        """Whether a delivery is awaited."""
        return self.delivery is None and not self.is_closed

    def delivered(self, delivery: Delivery) -> Self:
        return replace(self, delivery=delivery)

    def closed(self) -> Self:
        return replace(self, delivery=None, is_closed=True)

    def describe(self) -> dict[str, Any]:
        """Describe it for an operator, in values that JSON has."""
        delivery = self.delivery
        return {
            "order_id": self.order_id,
            "vendor": self.vendor,
            "price_micros": self.price_micros,
            "due_slot": self.due_slot,
            "is_closed": self.is_closed,
            "delivery": None if delivery is None else delivery.model_dump(mode="json"),
        }


def order_id_of(slot: int, job_id: str) -> str:
    """Return the id of the order that is sent when `slot` is the first that can be planned."""
    return f"{slot}/{job_id}"
