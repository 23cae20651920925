"""One cheap record, sent again and again under new ids, has under any policy no more than an answer for each
zone or run that it is about."""

import random

import pytest

from schemas.auction.bids import VendorQuoted
from schemas.base import Event
from schemas.codec import Decision, Envelope
from schemas.fleet import CommandRefused
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.streams.test_mutated_events import POLICIES, play
from tests.support.cells import Bench
from tests.support.examples import LONG
from tests.support.twins import TwinBench

STATES = 40 if LONG else 4
"""States of each policy in which every type of event is repeated."""
SETTLING, REPEATED = 4, 20
"""The first few may have consequences, and those that come then may not."""
ANSWER_BYTES = 2_048


def _most_answers(cell: Cell, event: Event) -> int:
    match event:
        case VendorQuoted():
            return len(cell.zones)
        case CommandRefused():
            return 1 + len(event.runs)
        case _:
            return 1


class Repeater:
    """Follows a cell, and repeats in some of its states an event of each type that it has had."""

    def __init__(self, name: str) -> None:
        self.source = random.Random(f"repeated/{name}")
        self.left = STATES
        self._seen: dict[type[Event], list[Event]] = {}
        self._number = 0

    def handle(self, bench: Bench, entry: LedgerEvent) -> list[Decision]:
        """An event of a history, and perhaps a look at what repeated ones would do now."""
        if entry.offset == 0:
            self._seen.clear()
        self._seen.setdefault(type(entry.envelope.event), []).append(entry.envelope.event)
        decisions = bench.cell.handle(entry)
        if self.left and bench.cell.configuration is not None and self.source.random() < 0.05:
            self.left -= 1
            packed = bench.cell.packed()
            for events in self._seen.values():
                self._repeat(Cell.unpack(packed), self.source.choice(events[-8:]))
        return decisions

    def _repeat(self, cell: Cell, event: Event) -> None:
        self._decided(cell, event, SETTLING)
        decisions = self._decided(cell, event, REPEATED)
        answers = _most_answers(cell, event)
        what = f"{event.TYPE}: {sorted({each.outcome.TYPE for each in decisions})}"
        assert len(decisions) <= answers * REPEATED, what
        assert sum(len(each.canonical) for each in decisions) <= ANSWER_BYTES * REPEATED, what

    def _decided(self, cell: Cell, event: Event, times: int) -> list[Decision]:
        decisions = []
        for _ in range(times):
            self._number += 1
            envelope = Envelope(f"r{self._number}", "test", "", event)
            decisions += cell.handle(LedgerEvent(cell.offset + 1, envelope))
        return decisions


@pytest.mark.parametrize("name", POLICIES)
def test_a_repeated_record_has_one_small_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    repeater = Repeater(name)
    for bench in (Bench, TwinBench):
        monkeypatch.setattr(bench, "handle_entry", lambda bench, entry: repeater.handle(bench, entry))
    play(name, repeater)  # type: ignore[arg-type]
