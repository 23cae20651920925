"""Events of the `quotes` topic: labour vendors' prices and delays of pre-processing."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Event, Identifier, Micros, Outcome
from schemas.kind import InputTopic

QUOTES = InputTopic(
    name="quotes",
    summary="Prices and delays of pre-processing, from labour vendors.",
    writers="vendors",
    writer_field="vendor",
)

Delay = Annotated[float, Field(ge=0, le=31_536_000)]


class VendorQuoted(Event):
    """A standing quote: price q_in and delay h_in as affine functions of the data size. The latest one
    applies."""

    TYPE: ClassVar = "millrace.vendor.quoted.v1"

    vendor: Identifier
    fixed_price_micros: Micros
    price_per_thousand_samples_micros: Micros
    fixed_delay_s: Delay
    delay_per_thousand_samples_s: Delay


class VendorLeft(Event):
    """A vendor withdraws its quote; bids decided before are not affected."""

    TYPE: ClassVar = "millrace.vendor.left.v1"

    vendor: Identifier


class QuoteAccepted(Outcome):
    """A labour vendor's standing quote, or its withdrawal, applies to every later bid."""

    TYPE: ClassVar = "millrace.vendor.quote_accepted.v1"

    zone: Identifier
    vendor: Identifier
    reason: Literal["quoted", "left"]
