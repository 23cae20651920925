"""Schemes to which merging is compared, by name, with the interval of their decisions."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from solvers.merging.optimus import Optimus
from solvers.merging.pollux import FixedBatchPollux
from solvers.merging.scheme import Scheme
from solvers.merging.srtf import ShortestRemainingTimeFirst
from solvers.merging.themis import Themis
from solvers.merging.tiresias import Tiresias


class Rival(NamedTuple):
    """Scheme with the settings of section 7.1."""

    make: Callable[[float], Scheme]
    """Function that makes the scheme for an interval of calls in seconds."""
    interval_s: float
    """Published interval of decisions."""


def _titan(interval_s: float) -> Scheme:
    from solvers.merging.titan import Titan  # Pyomo takes a second to import.

    return Titan(interval_s=interval_s)


RIVALS: Mapping[str, Rival] = MappingProxyType(
    {
        "srtf": Rival(lambda _: ShortestRemainingTimeFirst(), 120.0),
        "tiresias": Rival(lambda _: Tiresias(), 120.0),
        "optimus": Rival(lambda _: Optimus(), 300.0),
        "pollux": Rival(lambda _: FixedBatchPollux(), 300.0),
        "themis": Rival(lambda interval_s: Themis(interval_s=interval_s), 120.0),
        "titan": Rival(_titan, 120.0),
    }
)
"""Schemes by name. Leases of Themis are 600 s. Titan's interval is that of the published values used for
comparison, since section 7.1 does not state it."""
