"""Verification of a log: recompute every decision from the ledger, and compare byte by byte and link by
link.
"""

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from schemas.codec import Decision, InvalidRecordError, decode_decision
from streams.cell.cell import Cell, LedgerEvent
from streams.cell.rules import RULES, RuleBook
from streams.replay.chains import Chains
from streams.replay.demands import Demanded, Demands
from streams.replay.heads import Head, HeadCheck, KeptHead
from streams.replay.stretches import FindState, Stretch, StretchFold, no_state

MAX_DIFFERENCES = 100
"""How many differences a verdict lists; all are counted."""

Kind = Literal["altered", "missing", "awaited", "extra", "unreadable", "repeated", "misplaced"]
"""How a decision record can differ from what the ledger demands; see `Difference`."""

LIVE: frozenset[Kind] = frozenset({"awaited", "repeated", "misplaced"})
"""What a log on Kafka may rightly show: a worker has decisions to publish yet, and one that was killed
publishes some again, or only now what a failed delivery left out."""


@dataclass(frozen=True)
class DecisionRecord:
    """A decision as it lies in a topic or a file."""

    value: bytes
    place: str
    """Such as `millrace.decisions[3]@17`, or `decisions.jsonl:18`."""


@dataclass(frozen=True)
class Difference:
    """One decision that is not what the ledger demands.

    `altered`: other bytes than expected. `missing`: not published, though later ones of its cell were.
    `awaited`: not published, and no later one of its cell either. `extra`: the ledger has no such decision.
    `unreadable`: no decision at all. `repeated`: the same bytes as before. `misplaced`: behind a later one.
    """

    kind: Kind
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
    """Tolerated records that repeat a decision byte by byte, as a worker that was killed leaves them."""
    awaited: int
    """Tolerated lack of decisions behind the last one that is there of their cell: a worker that is behind
    has not published them yet, and one that is dead never will."""
    settled: Mapping[str, int]
    """By cell, the ledger offset up to which no decision is awaited."""
    difference_count: int
    differences: tuple[Difference, ...]
    """The first of them, in the order of the ledger; what cannot be placed there comes last."""
    broken_links: Mapping[str, str]
    """By cell, the first decision whose `chain` does not follow from the records before it."""
    heads: Mapping[str, Head]
    """By cell, the head of the part of the log that is there, awaited decisions left out: who keeps it can
    hold a later copy of the log against it."""
    head_faults: tuple[str, ...]
    """A line for each head that was kept and that the log does not have."""
    stretches: tuple[Stretch, ...]
    """Which rules decided what, cell by cell."""
    join_faults: tuple[str, ...]
    """A line for each stretch that does not begin where the one before it ends."""

    @property
    def ok(self) -> bool:
        """Whether every decision follows from the ledger, and every saved head is found."""
        return not self.has_faults and not self.unverified

    @property
    def has_faults(self) -> bool:
        """Whether anything is known to be wrong."""
        return bool(self.difference_count or self.broken_links or self.head_faults or self.join_faults)

    @property
    def unverified(self) -> tuple[Stretch, ...]:
        """The stretches that could not be folded again: nothing of them need be wrong."""
        return tuple(stretch for stretch in self.stretches if stretch.unverified is not None)

    @property
    def first(self) -> Difference | None:
        """The first record that differs."""
        return self.differences[0] if self.differences else None


class _Comparison:
    """What was found, record by record, beside what is demanded."""

    def __init__(self, demands: Demands, tolerated: Collection[Kind]) -> None:
        self._demands = demands
        self._tolerated = tolerated
        self.tolerated: Counter[Kind] = Counter()
        self.awaited_from: dict[str, int] = {}
        """By cell, the ledger offset of the first event with a decision that is awaited."""
        self.difference_count = 0
        self._last = -1
        """Place in the ledger of the furthest decision that was found as demanded."""
        self._last_of_cell: dict[str, int] = {}
        self._last_trusted = (-1, -1)
        """Event and index of the furthest decision that was taken as it was found."""
        self._first: list[tuple[int, int, Difference]] = []
        """The first differences, with their places in the ledger and the order in which they were noted; as a
        heap of the negatives of both, so that the last of them is quickly given up for an earlier one."""

    def take(self, record: DecisionRecord) -> None:
        id = _claimed_id(record.value)
        demanded = self._demands.get(id)
        if demanded is None:
            self._take_undemanded(record)
        elif demanded.value is None:
            self._take_trusted_again(record, demanded)
        elif record.value != demanded.value:
            expected, found = demanded.value.decode(), _text(record.value)
            self._differ(demanded.number, Difference("altered", id, record.place, expected, found))
            self._demands.find(demanded, record.value)
        elif demanded.found is not None:
            self._differ(demanded.number, Difference("repeated", id, record.place, None, None))
        else:
            self._demands.find(demanded, record.value)
            if demanded.number < self._last:
                self._differ(demanded.number, Difference("misplaced", id, record.place, None, None))
            self._last = max(self._last, demanded.number)
            last_of_cell = self._last_of_cell.get(demanded.cell, -1)
            self._last_of_cell[demanded.cell] = max(last_of_cell, demanded.number)

    def close(self) -> None:
        """Name what was never found."""
        for demanded in self._demands.missing():
            kind: Kind = "missing"
            if self.is_awaited(demanded):
                kind = "awaited"
                self.awaited_from.setdefault(demanded.cell, demanded.offset)
            place = f"ledger offset {demanded.offset} of cell {demanded.cell}"
            expected = _text(demanded.value or b"")
            self._differ(demanded.number, Difference(kind, demanded.id, place, expected, None))

    def is_awaited(self, demanded: Demanded) -> bool:
        """Whether a decision that was not found may be on its way still.

        A worker publishes a cell's decisions in order. One that is there to the byte proves that the worker
        has passed what comes before it; nothing else proves that, since it may be far behind the ledger.
        """
        return "awaited" in self._tolerated and demanded.number > self._last_of_cell.get(demanded.cell, -1)

    def in_order(self) -> tuple[Difference, ...]:
        """The first differences, in the order of the ledger."""
        return tuple(difference for _, _, difference in sorted(self._first, reverse=True, key=_place))

    def _take_trusted_again(self, record: DecisionRecord, trusted: Demanded) -> None:
        first = trusted.found or b""
        if record.value == first:
            difference = Difference("repeated", trusted.id, record.place, None, None)
        else:
            difference = Difference("altered", trusted.id, record.place, _text(first), _text(record.value))
        self._differ(self._demands.decisions, difference)

    def _take_undemanded(self, record: DecisionRecord) -> None:
        place, id = claimed_place(record.value), _claimed_id(record.value)
        if place is not None and id == "{}-{}-{}".format(*place):
            trusted = self._demands.trust(place, id, record.value)
            if trusted is not None:
                event, before = trusted
                # The worker that published it has passed what comes before it.
                last_of_cell = self._last_of_cell.get(place[0], -1)
                self._last_of_cell[place[0]] = max(last_of_cell, before - 1)
                if (event, place[2]) < self._last_trusted:
                    difference = Difference("misplaced", id, record.place, None, None)
                    self._differ(self._demands.decisions, difference)
                self._last_trusted = max(self._last_trusted, (event, place[2]))
                return
        found, last = _text(record.value), self._demands.decisions
        try:
            decision = decode_decision(record.value)
        except InvalidRecordError as error:
            self._differ(last, Difference("unreadable", "unknown", record.place, None, f"{error}: {found}"))
        else:
            self._differ(last, Difference("extra", decision.id, record.place, None, found))

    def _differ(self, number: int, difference: Difference) -> None:
        if difference.kind in self._tolerated:
            self.tolerated[difference.kind] += 1
            return
        entry = (-number, -self.difference_count, difference)
        self.difference_count += 1
        if len(self._first) < MAX_DIFFERENCES:
            heapq.heappush(self._first, entry)
        else:
            heapq.heappushpop(self._first, entry)


def _place(entry: tuple[int, int, Difference]) -> tuple[int, int]:
    return entry[:2]


def fold(
    ledger: Iterable[LedgerEvent], kept: HeadCheck | None = None, book: RuleBook = RULES
) -> Iterator[tuple[LedgerEvent, list[Decision]]]:
    """What the ledger of one or more cells demands, event by event.

    Args:
        kept: is told the chain after each event.

    Raises:
        ValueError: if the events of a cell are not in the order of their offsets.
        RulesError: if rules that decided some of them are not in `book`.
    """
    cells: dict[str, Cell] = {}
    for event in ledger:
        name = event.envelope.event.cell
        cell = cells.setdefault(name, Cell(name, book))
        decisions = cell.handle(event)
        if kept is not None:
            kept.take(name, event.offset, cell.chain)
        yield event, decisions


def verify(
    ledger: Iterable[LedgerEvent],
    decisions: Iterable[DecisionRecord],
    tolerated: Collection[Kind] = (),
    kept: Iterable[KeptHead] = (),
    book: RuleBook = RULES,
    find_state: FindState = no_state,
) -> Verdict:
    """Fold `ledger` and compare with `decisions`, by id.

    Where the rules that decided are not in `book`, the decisions are taken as they are found. Their chain is
    verified all the same, and that the stretches around them join.

    Both are read once, record by record; what is to be remembered of them is on disk. The events of each cell
    must come in the order of their offsets, from the first one on.

    Args:
        tolerated: what is counted and no fault: `LIVE` for a log that grows, nothing for an exported one.
        kept: heads that the log must have.
        book: the rules at hand.
        find_state: the states that are kept where rules changed.

    Raises:
        ValueError: if the events of a cell are out of order.
        sqlite3.Error: if there is no room on disk for what is to be remembered.
    """
    heads = HeadCheck(kept)
    folding = StretchFold(book, find_state)
    with Demands() as demands:
        for event in ledger:
            folded = folding.take(event)
            if folded is not None:
                heads.take(event.envelope.event.cell, event.offset, folded[1])
            demands.add(event, None if folded is None else folded[0])
        comparison = _Comparison(demands, tolerated)
        for record in decisions:
            comparison.take(record)
        comparison.close()
        chains = Chains(folding.start_chains, heads, may_end_early="awaited" in tolerated)
        for link in demands.links():
            chains.follow(link, awaited=link.decision is not None and comparison.is_awaited(link.decision))
        chains.close()
        stretches = folding.stretches()
        return Verdict(
            cells=len({stretch.cell for stretch in stretches}),
            events=demands.events,
            decisions=demands.decisions,
            duplicates=comparison.tolerated["repeated"],
            awaited=comparison.tolerated["awaited"],
            settled=_settled(stretches, comparison.awaited_from, chains),
            difference_count=comparison.difference_count,
            differences=comparison.in_order(),
            broken_links=dict(sorted(chains.broken.items())),
            heads=dict(sorted(chains.heads.items())),
            head_faults=heads.faults(),
            stretches=stretches,
            join_faults=(*folding.faults, *chains.unjoined.values()),
        )


def _settled(stretches: Iterable[Stretch], awaited_from: Mapping[str, int], chains: Chains) -> dict[str, int]:
    """See `Verdict.settled`. Of a cell with a stretch that was not folded, the chain says what is there."""
    settled: dict[str, int] = {}
    for stretch in stretches:
        cell = stretch.cell
        settled[cell] = stretch.last_offset
        if cell in awaited_from:
            settled[cell] = awaited_from[cell] - 1
    for stretch in stretches:
        cell = stretch.cell
        if stretch.unverified is not None and cell not in chains.broken | chains.unjoined:
            head = chains.heads.get(cell)
            settled[cell] = -1 if head is None else head.offset
    return settled


def claimed_place(value: bytes) -> tuple[str, int, int] | None:
    """Cell, ledger offset and index of the id that a record starts with; None where it starts with none."""
    cell, *numbers = _claimed_id(value).rsplit("-", 2)
    if len(numbers) != 2 or not all(number.isdecimal() and len(number) <= 18 for number in numbers):
        return None
    offset, index = map(int, numbers)
    return cell, offset, index


def _claimed_id(value: bytes) -> str:
    """The id that a record starts with, even if the rest of it is unreadable."""
    match = re.match(rb'\{"id":"([A-Za-z0-9._-]{1,200})"', value)
    return match[1].decode() if match else ""


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
