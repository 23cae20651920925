"""Verification of a log: compute every decision again from the ledger, and compare bytes and links."""

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from schemas.codec import Decision, InvalidRecordError, decode_decision
from streams.cell.ledger_event import LedgerEvent
from streams.cell.rules import RULES, RuleBook
from streams.cell.state_machine import Cell
from streams.replay.chain_check import Chains
from streams.replay.demanded_decisions import Demanded, DemandedDecisions
from streams.replay.heads import Head, HeadCheck, KeptHead
from streams.replay.stretches import FindState, Stretch, StretchFold, no_state

MAX_DIFFERENCES = 100
"""Most differences that a verdict lists; all are counted."""

Kind = Literal["altered", "missing", "awaited", "extra", "unreadable", "repeated", "misplaced"]
"""Kind of difference between a decision record and the ledger's demand; see `Difference`."""

LIVE: frozenset[Kind] = frozenset({"awaited", "repeated", "misplaced"})
"""Differences that a correct log on Kafka may have: a worker has not published some decisions yet, and after
a crash it publishes some again, or late after a failed delivery."""


@dataclass(frozen=True)
class DecisionRecord:
    """Record of a decision in a topic or a file."""

    value: bytes
    place: str
    """Place of the record, such as `millrace.decisions[3]@17` or `decisions.jsonl:18`."""


@dataclass(frozen=True)
class Difference:
    """Difference between a decision and the ledger's demand.

    `altered`: other bytes than expected. `missing`: not published, although later ones of its cell are.
    `awaited`: not published, as all later ones of its cell. `extra`: the ledger demands no such decision.
    `unreadable`: the record is no decision. `repeated`: the same bytes as before. `misplaced`: after a later
    one.
    """

    kind: Kind
    decision_id: str
    place: str
    """Place of the record; for a missing one, the ledger event that demands it."""
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        """Return one line for an operator."""
        line = f"{self.kind}: decision {self.decision_id} at {self.place}"
        if self.expected is None or self.found is None:
            return line
        pairs = zip(self.expected, self.found, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        expected, found = (text[max(0, same - 20) : same + 40] for text in (self.expected, self.found))
        return f"{line}: from character {same} on, expected {expected!r}, found {found!r}"


@dataclass(frozen=True)
class Verdict:
    """Result of a replay."""

    cells: int
    events: int
    decisions: int
    """Number of decisions that the ledger demands."""
    duplicates: int
    """Tolerated records that repeat a decision byte by byte, as after the crash of a worker."""
    awaited: int
    """Tolerated missing decisions after the last one of their cell: a slow worker has not published them yet,
    and a dead one never will."""
    settled: Mapping[str, int]
    """Ledger offset up to which no decision is awaited, by cell."""
    difference_count: int
    differences: tuple[Difference, ...]
    """First differences, in the order of the ledger; those without a place in it come last."""
    broken_links: Mapping[str, str]
    """First decision whose `chain` does not follow from the records before it, by cell."""
    heads: Mapping[str, Head]
    """Head of the log without awaited decisions, by cell: a saved head verifies a later copy of the log."""
    head_faults: tuple[str, ...]
    """Line for each kept head that the log does not have."""
    stretches: tuple[Stretch, ...]
    """Stretches and the rules that decided them, cell by cell."""
    join_faults: tuple[str, ...]
    """Line for each stretch that does not begin where the previous one ends."""

    @property
    def ok(self) -> bool:
        """Whether every decision follows from the ledger, and every saved head is found."""
        return not self.has_faults and not self.unverified

    @property
    def has_faults(self) -> bool:
        """Whether there is any fault."""
        return bool(self.difference_count or self.broken_links or self.head_faults or self.join_faults)

    @property
    def unverified(self) -> tuple[Stretch, ...]:
        """Stretches that could not be folded again; they may be correct."""
        return tuple(stretch for stretch in self.stretches if stretch.unverified is not None)

    @property
    def first(self) -> Difference | None:
        return self.differences[0] if self.differences else None


class _RecordComparison:
    """Comparison of found records with demanded ones, record by record."""

    def __init__(self, demands: DemandedDecisions, tolerated: Collection[Kind]) -> None:
        self._demands = demands
        self._tolerated = tolerated
        self.tolerated: Counter[Kind] = Counter()
        self.awaited_from: dict[str, int] = {}
        """Ledger offset of the first event with an awaited decision, by cell."""
        self.difference_count = 0
        self._last = -1
        """Position in the ledger of the last decision that was found as demanded."""
        self._last_of_cell: dict[str, int] = {}
        self._last_trusted = (-1, -1)
        """Event and index of the last decision that was accepted as found, by cell."""
        self._first: list[tuple[int, int, Difference]] = []
        """First differences, with their positions in the ledger and the order in which they were stored. It
        is a heap by the negatives of both, so that an earlier one quickly replaces the last."""

    def add(self, record: DecisionRecord) -> None:
        id = _claimed_id(record.value)
        demanded = self._demands.get(id)
        if demanded is None:
            self._compare_undemanded(record)
        elif demanded.value is None:
            self._compare_repeated(record, demanded)
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
        """Add the differences of decisions that were not found."""
        for demanded in self._demands.missing():
            kind: Kind = "missing"
            if self.is_awaited(demanded):
                kind = "awaited"
                self.awaited_from.setdefault(demanded.cell, demanded.offset)
            place = f"ledger offset {demanded.offset} of cell {demanded.cell}"
            expected = _text(demanded.value or b"")
            self._differ(demanded.number, Difference(kind, demanded.id, place, expected, None))

    def is_awaited(self, demanded: Demanded) -> bool:
        """Return whether a decision that was not found may still be published.

        A worker publishes a cell's decisions in order. Only a decision with equal bytes proves that the
        worker has processed the earlier events, since it may be far behind the ledger.
        """
        return "awaited" in self._tolerated and demanded.number > self._last_of_cell.get(demanded.cell, -1)

    def in_order(self) -> tuple[Difference, ...]:
        """Return the first differences, in the order of the ledger."""
        return tuple(difference for _, _, difference in sorted(self._first, reverse=True, key=_place))

    def _compare_repeated(self, record: DecisionRecord, trusted: Demanded) -> None:
        first = trusted.found or b""
        if record.value == first:
            difference = Difference("repeated", trusted.id, record.place, None, None)
        else:
            difference = Difference("altered", trusted.id, record.place, _text(first), _text(record.value))
        self._differ(self._demands.decisions, difference)

    def _compare_undemanded(self, record: DecisionRecord) -> None:
        place, id = claimed_place(record.value), _claimed_id(record.value)
        if place is not None and id == "{}-{}-{}".format(*place):
            trusted = self._demands.trust(place, id, record.value)
            if trusted is not None:
                event, before = trusted
                # The worker that published it has processed all earlier events.
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
    """Yield the decisions that the ledger of one or more cells demands, event by event.

    Args:
        kept: receives the chain after each event.

    Raises:
        ValueError: the events of a cell are not in the order of their offsets.
        RulesError: rules that decided some of them are not in `book`.
    """
    cells: dict[str, Cell] = {}
    for event in ledger:
        name = event.envelope.event.cell
        cell = cells.setdefault(name, Cell(name, book))
        decisions = cell.handle(event)
        if kept is not None:
            kept.check(name, event.offset, cell.chain)
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

    If the rules that decided are not in `book`, the decisions are accepted as found. Their chain is still
    verified, and that the adjacent stretches join.

    Both are read once, record by record; the state of the comparison is on disk. The events of each cell must
    be in the order of their offsets, from the first one on.

    Args:
        tolerated: kinds that are counted and no fault: `LIVE` for a growing log, none for an exported one.
        kept: heads that the log must have.
        book: the available rules.
        find_state: finds the states kept at changes of rules.

    Raises:
        ValueError: the events of a cell are out of order.
        sqlite3.Error: there is no room on disk for the state of the comparison.
    """
    heads = HeadCheck(kept)
    folding = StretchFold(book, find_state)
    with DemandedDecisions() as demands:
        for event in ledger:
            folded = folding.fold(event)
            if folded is not None:
                heads.check(event.envelope.event.cell, event.offset, folded[1])
            demands.add(event, None if folded is None else folded[0])
        comparison = _RecordComparison(demands, tolerated)
        for record in decisions:
            comparison.add(record)
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
    """See `Verdict.settled`. For a cell with a stretch that was not folded, the chain shows the present
    decisions."""
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
    """Return cell, ledger offset and index of the id at the start of a record; None without an id."""
    cell, *numbers = _claimed_id(value).rsplit("-", 2)
    if len(numbers) != 2 or not all(number.isdecimal() and len(number) <= 18 for number in numbers):
        return None
    offset, index = map(int, numbers)
    return cell, offset, index


def _claimed_id(value: bytes) -> str:
    """Return the id at the start of a record, even if the rest is unreadable."""
    match = re.match(rb'\{"id":"([A-Za-z0-9._-]{1,200})"', value)
    return match[1].decode() if match else ""


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
