"""The simulated labour vendors of a cell: they deliver in time, but prepare nothing."""

import hashlib

from infra.simulation.event_queue import Moments
from schemas.auction.deliveries import PreprocessingDelivered, PreprocessingOrdered, delivery_path
from schemas.codec import Decision
from schemas.lora import Delivery

_BYTES_PER_SAMPLE = 1_000


def deliver(decision: Decision, time_s: float) -> Moments:
    """Yield the delivery of an order when it is due, with all of its samples."""
    order = decision.outcome
    assert isinstance(order, PreprocessingOrdered), "only orders are delivered"
    samples = order.dataset.samples
    delivery = Delivery(
        path=delivery_path(decision.cell, order.vendor, order.order_id),
        digest=hashlib.blake2b(order.order_id.encode(), digest_size=32).hexdigest(),
        size_bytes=samples * _BYTES_PER_SAMPLE,
        samples=samples,
    )
    event = PreprocessingDelivered(
        cell=decision.cell,
        vendor=order.vendor,
        order_id=order.order_id,
        job_id=order.job_id,
        delivery=delivery,
    )
    yield max(time_s, order.due_s), event
