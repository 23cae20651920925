"""Orders of pre-processing to labour vendors, and what vendors deliver."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Event, Identifier, Outcome, Record, RunId, Samples, Slot, Text
from schemas.facts import Facts
from schemas.lora import Dataset, Delivery

OrderId = RunId
"""Id of an order, unique for its vendor: the first slot that could be planned, and the job."""


def delivery_path(cell: str, vendor: str, order_id: str) -> str:
    """Return the path of the only file that an order accepts, below the executors' dataset root."""
    return f"prepared/{cell}/{vendor}/{order_id}.jsonl"


DataFault = Literal["data_missing", "data_unreadable", "too_little_left", "more_data_than_ordered"]
"""Faults of a user's data. `data_missing`: there is no such file. `data_unreadable`: it has no line that is a
JSON object. `too_little_left`: without duplicates and unfit records, fewer are left than the order
accepts.
`more_data_than_ordered`: it has more records than the job declares."""


ClosingReason = DataFault | Literal["vendor_unable", "wrong_path", "wrong_size", "data_differ", "job_over"]
"""Reason of an order's end without a payment. `wrong_path`: the delivery is not the file of the order, see
`delivery_path`. `wrong_size`: the delivery has fewer samples than the order accepts, or more than the
data. `data_differ`: on the node, the data are not those of the delivery, or not of the job's data.
`job_over`: the job ended before a delivery. The others are those of the vendor."""


class Deliveries(Record):
    """Conditions under which a zone orders pre-processing and accepts what vendors deliver."""

    least_part: Annotated[float, Field(ge=0.001, le=1)] = 0.5
    """Part of the declared samples that a delivery has at least: a vendor drops duplicates and unfit
    records."""


class PreprocessingReport(Event):
    """A report of a vendor about one of its orders."""

    vendor: Identifier
    order_id: OrderId
    job_id: Identifier


class PreprocessingDelivered(PreprocessingReport):
    """The vendor has prepared the data, and written them below the executors' dataset root."""

    TYPE: ClassVar = "millrace.preprocessing.delivered.v1"

    delivery: Delivery


FailureReason = DataFault | Literal["vendor_unable"]
"""Reason of a vendor: a fault of the data, or `vendor_unable` for its own, such as a full disk."""


class PreprocessingFailed(PreprocessingReport):
    """The vendor cannot prepare the data."""

    TYPE: ClassVar = "millrace.preprocessing.failed.v1"

    reason: FailureReason
    detail: Text = ""


class PreprocessingOrdered(Outcome):
    """The zone orders the pre-processing of a job's data from its vendor."""

    TYPE: ClassVar = "millrace.preprocessing.ordered.v1"

    zone: Identifier
    vendor: Identifier
    order_id: OrderId
    job_id: Identifier
    dataset: Dataset
    """Data to prepare, with the declared number of samples."""
    least_samples: Samples
    """Least number of samples of a delivery that the zone accepts."""
    price_micros: Amount
    """Price of the vendor (q_in), which it gets with an accepted delivery."""
    due_slot: Slot
    """First slot that may be planned to train on the data: a delivery is late from its start on."""
    due_s: Annotated[float, Field(ge=0)]
    """Start of `due_slot`."""


class PreprocessingAccepted(Outcome):
    """The zone accepts a delivery and pays the vendor. The job trains on it from the next slot on."""

    TYPE: ClassVar = "millrace.preprocessing.accepted.v1"

    zone: Identifier
    vendor: Identifier
    order_id: OrderId
    job_id: Identifier
    reason: Literal["in_time", "late"]
    delivery: Delivery
    paid_micros: Amount


class PreprocessingClosed(Outcome):
    """An order ends without a payment: the vendor gets nothing, and returns what it was paid."""

    TYPE: ClassVar = "millrace.preprocessing.closed.v1"

    zone: Identifier
    vendor: Identifier
    order_id: OrderId
    job_id: Identifier
    reason: ClosingReason
    facts: Facts = Field(default_factory=dict)
    returned_micros: Amount
    """Payment that the vendor returns; 0 before a payment."""
