"""Proof of a log: fold the ledger again, and compare every decision byte by byte and link by link."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from schemas.codec import Decision, InvalidRecordError, decode_decision
from streams.cell import CHAIN_START, Cell, LedgerEvent

MAX_DIFFERENCES = 100
"""How many differences a verdict lists; all are counted."""

_CHAIN_BYTES = 32
_CHAIN_SUFFIX_BYTES = len(b',"chain":"') + 2 * _CHAIN_BYTES + len(b'"}')


@dataclass(frozen=True)
class DecisionRecord:
    """A decision as it lies in a topic or a file."""

    value: bytes
    place: str
    """Such as `millrace.decisions[3]@17`, or `decisions.jsonl:18`."""


@dataclass(frozen=True)
class Difference:
    """One decision that is not what the ledger demands.

    `altered`: other bytes than expected. `missing`: never published. `extra`: the ledger has no such
    decision. `unreadable`: no decision at all.
    """

    kind: Literal["altered", "missing", "extra", "unreadable"]
    decision_id: str
    place: str
    """Where the record lies; for a missing one, the ledger event that demands it."""
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        """One line for an operator."""
        line = f"{self.kind}: decision {self.decision_id} at {self.place}"
        if self.expected is None or self.found is None:
            return line
        pairs = zip(self.expected, self.found, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        expected, found = (text[max(0, same - 20) : same + 40] for text in (self.expected, self.found))
        return f"{line}: from character {same} on, expected {expected!r}, found {found!r}"


@dataclass(frozen=True)
class Verdict:
    """What a replay found."""

    cells: int
    events: int
    decisions: int
    """How many decisions the ledger demands."""
    duplicates: int
    """Records that repeat a decision byte by byte, as a worker that was killed leaves them."""
    awaited: int
    """Decisions about events so recent that they may still be on their way."""
    difference_count: int
    differences: tuple[Difference, ...]
    """The first of them, in the order of the ledger; what cannot be placed there comes last."""
    broken_links: Mapping[str, str]
    """By cell, the first decision whose `chain` does not follow from the records before it."""

    @property
    def ok(self) -> bool:
        """Whether every decision is the one that the rules demand."""
        return self.difference_count == 0 and not self.broken_links

    @property
    def first(self) -> Difference | None:
        """The first record that differs."""
        return self.differences[0] if self.differences else None


@dataclass
class _Expected:
    """A decision that the ledger demands, and what was found of it."""

    order: int
    value: bytes
    event: str
    may_be_awaited: bool
    found: bytes | None = None


@dataclass
class _Comparison:
    """What was found, record by record, beside what is expected."""

    expected: Mapping[str, _Expected]
    duplicates: int = 0
    awaited: int = 0
    differences: list[tuple[int, Difference]] = field(default_factory=list)

    def take(self, record: DecisionRecord) -> None:
        id = _claimed_id(record.value)
        demanded = self.expected.get(id)
        if demanded is None:
            self._take_undemanded(record)
        elif record.value != demanded.value:
            expected, found = demanded.value.decode(), _text(record.value)
            self._differ(demanded, Difference("altered", id, record.place, expected, found))
            demanded.found = demanded.found or record.value
        elif demanded.found is None:
            demanded.found = record.value
        else:
            self.duplicates += 1

    def close(self) -> None:
        """Name what was never found."""
        for id, demanded in self.expected.items():
            if demanded.found is None and demanded.may_be_awaited:
                self.awaited += 1
            elif demanded.found is None:
                difference = Difference("missing", id, demanded.event, demanded.value.decode(), None)
                self._differ(demanded, difference)

    def in_order(self) -> list[Difference]:
        """The differences in the order of the ledger."""
        return [difference for _, difference in sorted(self.differences, key=lambda entry: entry[0])]

    def _take_undemanded(self, record: DecisionRecord) -> None:
        found = _text(record.value)
        try:
            decision = decode_decision(record.value)
        except InvalidRecordError as error:
            self._differ(None, Difference("unreadable", "unknown", record.place, None, f"{error}: {found}"))
        else:
            self._differ(None, Difference("extra", decision.id, record.place, None, found))

    def _differ(self, demanded: _Expected | None, difference: Difference) -> None:
        order = len(self.expected) if demanded is None else demanded.order
        self.differences.append((order, difference))


def fold(ledger: Iterable[LedgerEvent]) -> Iterator[tuple[LedgerEvent, list[Decision]]]:
    """What the ledger of one or more cells demands, event by event.

    Raises:
        ValueError: if the events of a cell are not in the order of their offsets.
    """
    cells: dict[str, Cell] = {}
    for event in ledger:
        name = event.envelope.event.cell
        yield event, cells.setdefault(name, Cell(name)).handle(event)


def verify(
    ledger: Iterable[LedgerEvent],
    decisions: Iterable[DecisionRecord],
    settled_before: Mapping[str, int] | None = None,
) -> Verdict:
    """Fold `ledger` and compare with `decisions`, by id; their order and repetitions do not matter.

    The events of each cell must come in the order of their offsets, from the first one on. The decisions
    about events at `settled_before[cell]` and later may be on their way still, where a cell is given.

    Raises:
        ValueError: if the events of a cell are out of order.
    """
    settled_before = settled_before or {}
    expected: dict[str, _Expected] = {}
    links: dict[str, list[tuple[bytes, list[str]]]] = {}
    events = 0
    for event, demanded in fold(ledger):
        events += 1
        name = event.envelope.event.cell
        place = f"ledger offset {event.offset} of cell {name}"
        recent = name in settled_before and event.offset >= settled_before[name]
        ids = []
        for decision in demanded:
            ids.append(decision.id)
            expected[decision.id] = _Expected(len(expected), decision.canonical, place, recent)
        links.setdefault(name, []).append((event.envelope.canonical, ids))
    comparison = _Comparison(expected)
    for record in decisions:
        comparison.take(record)
    comparison.close()
    differences = comparison.in_order()
    broken = {name: _first_broken_link(links[name], expected) for name in sorted(links)}
    return Verdict(
        cells=len(links),
        events=events,
        decisions=len(expected),
        duplicates=comparison.duplicates,
        awaited=comparison.awaited,
        difference_count=len(differences),
        differences=tuple(differences[:MAX_DIFFERENCES]),
        broken_links={name: id for name, id in broken.items() if id is not None},
    )


def _first_broken_link(
    events: Iterable[tuple[bytes, list[str]]], decisions: Mapping[str, _Expected]
) -> str | None:
    """Follow the chain through the records as they were found, whatever the fold says they should be."""
    chain = CHAIN_START
    for event, ids in events:
        for id in ids:
            demanded = decisions[id]
            if demanded.found is None:
                return None if demanded.may_be_awaited else id
            body = demanded.found[:-_CHAIN_SUFFIX_BYTES]
            chain = hashlib.blake2b(chain + event + body, digest_size=_CHAIN_BYTES).digest()
            if demanded.found[len(body) :] != b',"chain":"' + chain.hex().encode() + b'"}':
                return id
        if not ids:
            chain = hashlib.blake2b(chain + event, digest_size=_CHAIN_BYTES).digest()
    return None


def _claimed_id(value: bytes) -> str:
    """The id that a record starts with, even if the rest of it is unreadable."""
    match = re.match(rb'\{"id":"([A-Za-z0-9._-]{1,200})"', value)
    return match[1].decode() if match else ""


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
