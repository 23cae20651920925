"""Cells under every policy fold numbers at the bounds of every field: none raises."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pydantic import ValidationError

from schemas.base import Event
from schemas.clock import ClockTicked
from schemas.decisions import EventFaulted
from streams.cell.cell import Cell, LedgerEvent
from tests.streams.ledgers import NAMES, ledger
from tests.support.bounds import Bounds, Number, Path, places_in
from tests.support.examples import LONG

PART = 1 if LONG else 25
"""One case of so many is tried."""
MOST_EVENTS = 10**9 if LONG else 120

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


@pytest.mark.parametrize("name", NAMES)
def test_numbers_at_the_bounds_of_their_fields_raise_nowhere(name: str) -> None:
    events = ledger(name)[:MOST_EVENTS]
    cases = [
        (place, number)
        for place, bounds in places(events).items()
        for number in bounds.at_the_edges()
        if place[0] is not ClockTicked and place[1] != ("rules",)
    ]
    for place, number in random.Random(name).sample(cases, len(cases) // PART):
        cell = Cell("c")
        for entry in changed(events, place, number):
            for decision in cell.handle(entry):
                fault = decision.outcome
                assert not isinstance(fault, EventFaulted), (place, number, fault, cell.last_fault)
        Cell.unpack(cell.packed())
