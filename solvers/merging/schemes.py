"""The schemes that merging is compared with, by name, and how often each decides."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from solvers.merging.optimus import Optimus
from solvers.merging.pollux import Pollux
from solvers.merging.scheme import Scheme
from solvers.merging.srtf import ShortestRemainingTimeFirst
from solvers.merging.themis import Themis
from solvers.merging.tiresias import Tiresias


class Rival(NamedTuple):
    """A scheme as section 7.1 sets it up."""

    make: Callable[[float], Scheme]
    """The scheme, for calls so many seconds apart."""
    interval_s: float
    """Between two decisions, as published."""


def _titan(interval_s: float) -> Scheme:
    from solvers.merging.titan import Titan  # Pyomo takes a second to import.

    return Titan(interval_s=interval_s)


RIVALS: Mapping[str, Rival] = MappingProxyType(
    {
        "srtf": Rival(lambda _: ShortestRemainingTimeFirst(), 120.0),
        "tiresias": Rival(lambda _: Tiresias(), 120.0),
        "optimus": Rival(lambda _: Optimus(), 300.0),
        "pollux": Rival(lambda _: Pollux(), 300.0),
        "themis": Rival(lambda interval_s: Themis(interval_s=interval_s), 120.0),
        "titan": Rival(_titan, 120.0),
    }
)
"""Leases of Themis are 600 s. Titan's interval is that of the published values we compare with: section 7.1
does not have it."""
