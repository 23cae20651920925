"""Places of exceptions: a zone and the method of its policy, or a stage of the cell.

A fault is recorded in the chained log with its place, so the place has to be the same on any machine; a file
and a line would not be. A method of `ZonePolicy` or a stage of another name changes the bytes of faults: that
needs a new version of the rules.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from streams.policies.policy import ZonePolicy

_ATTRIBUTE = "millrace_place"


@dataclass(frozen=True)
class Place:
    """A boundary that an exception crossed."""

    zone: str | None
    """None for the cell itself."""
    name: str
    """Name of the policy's method, or of the cell's stage."""


_UNKNOWN = Place(None, "fold")


def place_of(error: BaseException) -> Place:
    """Return the innermost place that was noted of an exception."""
    place = getattr(error, _ATTRIBUTE, _UNKNOWN)
    assert isinstance(place, Place)
    return place


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Note what raises in the block with the name of a stage of the cell."""
    try:
        yield
    except Exception as error:
        note(error, Place(None, name))
        raise


def note(error: BaseException, place: Place) -> None:
    """Note the place of an exception, unless it has one."""
    if not hasattr(error, _ATTRIBUTE):
        setattr(error, _ATTRIBUTE, place)


def placed(zone: str, policy: ZonePolicy) -> ZonePolicy:
    """Return the policy, with its exceptions noted with the zone and the method that raised them."""
    return cast(ZonePolicy, _PlacedPolicy(zone, policy))


class _PlacedPolicy:
    """A policy that notes the places of exceptions, for all of its methods."""

    def __init__(self, zone: str, policy: ZonePolicy) -> None:
        self._zone = zone
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._policy, name)
        return _noting(Place(self._zone, name), attribute) if callable(attribute) else attribute


def _noting(place: Place, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except Exception as error:
            note(error, place)
            raise

    return call
