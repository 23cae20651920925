"""How the prices of resources move with bids and awards, and the dual point by which they prove a bound."""

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Placement
from solvers.auction.market.window import Window
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.mechanism.search import Schedule


class Counted(NamedTuple):
    """What a bid has added to the certificate, and may add to what prices are learned from.

    It is kept with an admitted job, so that a withdrawal can take it back.
    """

    gain_micros: int = 0
    """mu_il: what the bid added to the dual bound besides its rises of prices."""
    net_micros: int = 0
    """The bid less the least that any vendor and operation of a plan cost."""
    compute_units: float = 0.0
    """The least that any plan takes of compute: see `posted/units.py`."""
    memory_units: float = 0.0
    """Likewise of memory."""
    window_slots: int = 0
    """In how many slots it might run."""
    slot: int = 0
    """The first slot that could be planned when it was counted."""
    base_part: float = 1.0
    """The base level of prices before it was awarded room, as a part of what it was after: see
    `posted/levels.py`."""
    guard_part: float = 1.0
    """Likewise of the guard level."""
    sold_units: float = 0.0
    """What it was awarded, in the units of then: the parts of compute and memory in them change."""


class Prices(Protocol):
    """The prices of one zone."""

    @property
    def bound_micros(self) -> int:
        """The value of the dual point: no schedule of the bids that were counted has more welfare."""

    def advance(self) -> None:
        """The market's window has moved on."""

    def judge(self, bid_micros: int, request: Request, window: Window | None) -> Counted:
        """Count a bid among those that the bound is for.

        Args:
            window: the request's part of the market; None where no plan could do the work in time.
        """

    def lost(self, counted: Counted) -> None:
        """A bid that was counted has lost."""

    def rise(self, schedule: Schedule, demand: Demand, counted: Counted, welfare_micros: int) -> float:
        """Raise prices for an award before its room is taken; returns b-bar_il, by which replanning raises
        them later."""

    def awarded(self, schedule: Schedule, demand: Demand, bid_micros: int, counted: Counted) -> Counted:
        """An award has its room; returns what is to be known if it is withdrawn."""

    def withdrawn(self, counted: Counted) -> None:
        """An admitted bid, or one that waited, is withdrawn."""

    def released(self, placement: Placement, demand: Demand) -> None:
        """Node-slots ahead were given back by a job that still counts in the planned welfare: others may take
        them."""

    def replan(
        self,
        demand: Demand,
        window: Window,
        priced: AbstractSet[tuple[int, int]],
        density_micros: float,
        budget_steps: int,
    ) -> Schedule | None:
        """Find a plan for the rest of an admitted task, take its room, and raise the prices of the node-slots
        that are not in `priced`."""

    @property
    def basis(self) -> "Basis | None":
        """What prices are read off; None where they follow from the settings and the awards alone."""

    def of_class(self, index: int) -> "ClassPrice":
        """What the node-slots ahead of a class of nodes cost."""

    def take_over(self, before: "Prices") -> None:
        """Go on from other prices of the zone, whose nodes, window or settings were others, or whose kind
        was: the bound then is one for all that was ever bid."""

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of prices of an equal zone."""


class Basis(NamedTuple):
    """What prices that find themselves are read off: see `posted/`."""

    base_micros_per_unit: float
    guard_micros_per_unit: float
    compute_part: float
    """Of the price of a unit; the rest is for memory."""
    span_slots: int
    remembered_slots: float
    """Of how many slots the bids are that demand is known from, older ones counting less, and each as much as
    it was expected to ask for."""
    expected_slots: float
    """What the span ahead would ask for if all of it were like its busiest stretch that begins now, in slots
    that ask for the mean."""
    believed_part: float
    """How much of the differences between hours of the day counts in that, from 0 to 1."""
    expected_by_hour: tuple[float, ...]
    """What a slot that begins in each hour of the day (UTC) is expected to ask for, as a part of the mean."""
    asked_share: float
    """What was asked for lately per slot, at any price, of what the zone has."""
    fall: float
    """By what part prices may fall in a slot."""


class ClassPrice(NamedTuple):
    """Prices in micros per node-slot over the window of a class of nodes."""

    mean_compute_micros: float
    highest_compute_micros: float
    mean_memory_micros: float
    highest_memory_micros: float
