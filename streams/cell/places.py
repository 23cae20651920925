"""Places of exceptions: a zone and the method of its policy, or a stage of the cell.

The chained log records the place of a fault, so a place is the same on all machines, unlike a file and line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from schemas.decisions import FaultPlace
from streams.policies.policy import ZonePolicy

_ATTRIBUTE = "millrace_place"

PLACE_OF_METHOD: Mapping[str, FaultPlace] = {place: place for place in get_args(FaultPlace)}
"""Recorded word of a method of `ZonePolicy`. A method that is renamed keeps its word."""


@dataclass(frozen=True)
class FaultBoundary:
    """A boundary that an exception crossed."""

    zone: str | None
    """None for the cell itself."""
    name: FaultPlace
    """The policy's method, or the cell's stage."""


_UNKNOWN = FaultBoundary(None, "fold")


def place_of(error: BaseException) -> FaultBoundary:
    """Return the place that is attached to an exception, which is the innermost one."""
    place = getattr(error, _ATTRIBUTE, _UNKNOWN)
    assert isinstance(place, FaultBoundary)
    return place


class CellStage:
    """A context that attaches a stage of the cell to exceptions that its block raises."""

    __slots__ = ("_name",)

    def __init__(self, name: FaultPlace) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            note(error, FaultBoundary(None, self._name))


def note(error: BaseException, place: FaultBoundary) -> None:
    """Attach a place to an exception, unless it has one."""
    if not hasattr(error, _ATTRIBUTE):
        setattr(error, _ATTRIBUTE, place)


def placed(zone: str, policy: ZonePolicy) -> ZonePolicy:
    """Return the policy; its exceptions carry the zone and the method that raised them."""
    return cast(ZonePolicy, _PlacedPolicy(zone, policy))


class _PlacedPolicy:
    """A policy whose methods attach their places to exceptions."""

    def __init__(self, zone: str, policy: ZonePolicy) -> None:
        self._zone = zone
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._policy, name)
        if not callable(attribute):
            return attribute
        return _noting(FaultBoundary(self._zone, PLACE_OF_METHOD.get(name, "policy")), attribute)


def _noting(place: FaultBoundary, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except Exception as error:
            note(error, place)
            raise

    return call
