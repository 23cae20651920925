"""Events of the `quotes` topic: what labour vendors charge for pre-processing, and how long they take."""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Identifier, Micros, Record

Delay = Annotated[float, Field(ge=0, le=31_536_000)]


class VendorQuoted(Record):
    """A standing quote: price q_in and delay h_in as affine functions of the data size. The latest holds."""

    TYPE: ClassVar = "millrace.vendor.quoted.v1"

    cell: Identifier
    vendor: Identifier
    fixed_price_micros: Micros
    price_per_thousand_samples_micros: Micros
    fixed_delay_s: Delay
    delay_per_thousand_samples_s: Delay


class VendorLeft(Record):
    """A vendor takes its quote back; bids decided before keep theirs."""

    TYPE: ClassVar = "millrace.vendor.left.v1"

    cell: Identifier
    vendor: Identifier
