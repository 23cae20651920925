"""Cells under every policy fold numbers at the bounds of every field: none raises."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from pydantic import ValidationError

from schemas.base import Event
from schemas.clock import ClockTicked
from schemas.decisions import EventFaulted
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.streams.ledgers import NAMES, ledger
from tests.support.bounds import Bounds, Number, Path, places_in

AFTERWARDS = 12
"""Events that follow a changed one in the quick form."""

Place = tuple[type[Event], Path]


def places(events: tuple[LedgerEvent, ...]) -> dict[Place, Bounds]:
    """Every number of every type of event in a ledger."""
    found: dict[Place, Bounds] = {}
    for entry in events:
        event = entry.envelope.event
        for path, bounds in places_in(event):
            found.setdefault((type(event), path), bounds)
    return found


def with_number(event: Event, path: Path, number: Number) -> Event | None:
    """The event with a number in this place; None where it has no such place, or other fields forbid it."""
    document = json.loads(event.model_dump_json())
    holder = document
    try:
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = number
        return type(event).model_validate_json(json.dumps(document))
    except (KeyError, IndexError, TypeError, ValidationError):
        return None


def changed(events: tuple[LedgerEvent, ...], place: Place, number: Number) -> Iterator[LedgerEvent]:
    """The ledger with a number in this place of all events that it is valid in."""
    kind, path = place
    for entry in events:
        other = (
            with_number(entry.envelope.event, path, number) if type(entry.envelope.event) is kind else None
        )
        # Stored bytes are of the event as it was.
        yield (
            entry
            if other is None
            else LedgerEvent(entry.offset, replace(entry.envelope, event=other, stored=None))
        )


def cases(events: tuple[LedgerEvent, ...]) -> Iterator[tuple[Place, Bounds]]:
    """The places of a ledger whose numbers are changed."""
    for place, bounds in places(events).items():
        if place[0] is not ClockTicked and place[1] != ("rules",):
            yield place, bounds


def fold(cell: Cell, events: Iterable[LedgerEvent], case: object) -> None:
    for entry in events:
        for decision in cell.handle(entry):
            fault = decision.outcome
            assert not isinstance(fault, EventFaulted), (case, fault, cell.last_fault)
    Cell.unpack(cell.packed())


def first_changed(events: tuple[LedgerEvent, ...], place: Place, number: Number) -> int | None:
    """Where a ledger first has an event in which a number is valid in this place."""
    kind, path = place
    for at, entry in enumerate(events):
        if type(entry.envelope.event) is kind and with_number(entry.envelope.event, path, number) is not None:
            return at
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_extremes_of_each_number_raise_nowhere(name: str) -> None:
    events = ledger(name)
    waiting: dict[int, list[tuple[Place, Number]]] = {}
    for place, bounds in cases(events):
        least, *_, most, _ = bounds.at_the_edges()
        for number in (least, most):
            if (at := first_changed(events, place, number)) is not None:
                waiting.setdefault(at, []).append((place, number))
    cell = Cell("c")
    for at, entry in enumerate(events):
        packed = cell.packed() if at and at in waiting else None
        for place, number in waiting.get(at, ()):
            copy = Cell("c") if packed is None else Cell.unpack(packed)
            fold(copy, changed(events[at : at + AFTERWARDS], place, number), (place, number))
        cell.handle(entry)
    assert len(waiting) > 3


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_numbers_at_bounds_raise_nowhere(name: str) -> None:
    events = ledger(name)
    for place, bounds in cases(events):
        for number in bounds.at_the_edges():
            fold(Cell("c"), changed(events, place, number), (place, number))
