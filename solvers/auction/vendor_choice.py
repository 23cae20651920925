"""How the rivals choose a labour vendor (section 5.1), of those whose delay leaves time to train."""

import hashlib
from collections.abc import Callable

from solvers.auction.mechanism import Request
from solvers.auction.window import VendorOption

VendorChoice = Callable[[Request, int], VendorOption | None]
"""The vendor for a request that has so many slots, or None where no vendor leaves time to train in them."""


def fastest_vendor(request: Request, slots: int) -> VendorOption | None:
    """The lowest delay; ties by price, then id."""
    return min(
        in_time(request, slots), key=lambda o: (o.delay_slots, o.price_micros, o.vendor or ""), default=None
    )


def cheapest_vendor(request: Request, slots: int) -> VendorOption | None:
    """The lowest price; ties by delay, then id."""
    return min(
        in_time(request, slots), key=lambda o: (o.price_micros, o.delay_slots, o.vendor or ""), default=None
    )


def drawn_vendor(request: Request, slots: int) -> VendorOption | None:
    """One at random, all alike: a hash of the request's id decides, so that no state is kept."""
    options = sorted(in_time(request, slots), key=lambda option: option.vendor or "")
    if not options:
        return None
    digest = hashlib.blake2b(f"vendor/{request.id}".encode(), digest_size=16).digest()
    return options[int.from_bytes(digest) % len(options)]


def in_time(request: Request, slots: int) -> list[VendorOption]:
    """The vendors after whose delay an empty market could still do the work within so many slots."""
    most_samples = int(request.demand.samples.max())
    return [
        option
        for option in request.options
        if most_samples * (slots - option.delay_slots) >= request.demand.work_samples
    ]
