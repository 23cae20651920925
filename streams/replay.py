"""Proof of a log: fold the ledger again, and compare every decision byte by byte and link by link."""

import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from schemas.codec import Decision, InvalidRecordError, decode_decision
from streams.cell import CHAIN_START, Cell, LedgerEvent
from streams.replay_demands import Demands, Link

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


class _Comparison:
    """What was found, record by record, beside what is demanded."""

    def __init__(self, demands: Demands) -> None:
        self._demands = demands
        self.duplicates = 0
        self.awaited = 0
        self.difference_count = 0
        self._first: list[tuple[int, int, Difference]] = []
        """The first differences, with their places in the ledger and the order in which they were noted; as a
        heap of the negatives of both, so that the last of them is quickly given up for an earlier one."""

    def take(self, record: DecisionRecord) -> None:
        id = _claimed_id(record.value)
        demanded = self._demands.get(id)
        if demanded is None:
            self._take_undemanded(record)
        elif record.value != demanded.value:
            expected, found = demanded.value.decode(), _text(record.value)
            self._differ(demanded.number, Difference("altered", id, record.place, expected, found))
            self._demands.find(demanded, record.value)
        elif demanded.found is None:
            self._demands.find(demanded, record.value)
        else:
            self.duplicates += 1

    def close(self) -> None:
        """Name what was never found."""
        for demanded in self._demands.missing():
            if demanded.may_be_awaited:
                self.awaited += 1
                continue
            place = f"ledger offset {demanded.offset} of cell {demanded.cell}"
            expected = demanded.value.decode()
            self._differ(demanded.number, Difference("missing", demanded.id, place, expected, None))

    def in_order(self) -> tuple[Difference, ...]:
        """The first differences, in the order of the ledger."""
        return tuple(difference for _, _, difference in sorted(self._first, reverse=True, key=_place))

    def _take_undemanded(self, record: DecisionRecord) -> None:
        found, last = _text(record.value), self._demands.decisions
        try:
            decision = decode_decision(record.value)
        except InvalidRecordError as error:
            self._differ(last, Difference("unreadable", "unknown", record.place, None, f"{error}: {found}"))
        else:
            self._differ(last, Difference("extra", decision.id, record.place, None, found))

    def _differ(self, number: int, difference: Difference) -> None:
        entry = (-number, -self.difference_count, difference)
        self.difference_count += 1
        if len(self._first) < MAX_DIFFERENCES:
            heapq.heappush(self._first, entry)
        else:
            heapq.heappushpop(self._first, entry)


def _place(entry: tuple[int, int, Difference]) -> tuple[int, int]:
    return entry[:2]


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

    Both are read once, record by record; what is to be remembered of them is on disk.

    The events of each cell must come in the order of their offsets, from the first one on. The decisions
    about events at `settled_before[cell]` and later may be on their way still, where a cell is given; it is
    looked up after the event was read.

    Raises:
        ValueError: if the events of a cell are out of order.
        sqlite3.Error: if there is no room on disk for what is to be remembered.
    """
    settled_before = {} if settled_before is None else settled_before
    cells: set[str] = set()
    with Demands() as demands:
        for event, demanded in fold(ledger):
            name = event.envelope.event.cell
            cells.add(name)
            recent = name in settled_before and event.offset >= settled_before[name]
            demands.add(event, demanded, recent)
        comparison = _Comparison(demands)
        for record in decisions:
            comparison.take(record)
        comparison.close()
        return Verdict(
            cells=len(cells),
            events=demands.events,
            decisions=demands.decisions,
            duplicates=comparison.duplicates,
            awaited=comparison.awaited,
            difference_count=comparison.difference_count,
            differences=comparison.in_order(),
            broken_links=_broken_links(demands.links()),
        )


def _broken_links(links: Iterable[Link]) -> dict[str, str]:
    """Follow each cell's chain through the records as they were found, whatever the fold says they should be.

    Returns:
        by cell, the first decision whose link does not hold.
    """
    chains: dict[str, bytes] = {}
    ended: dict[str, str | None] = {}
    """By cell whose chain was followed to its end, the link that does not hold there, if any."""
    for link in links:
        if link.cell in ended:
            continue
        found, body = b"", b""
        if link.decision is not None:
            if link.decision.found is None:
                ended[link.cell] = None if link.decision.may_be_awaited else link.decision.id
                continue
            found = link.decision.found
            body = found[:-_CHAIN_SUFFIX_BYTES]
        before = chains.get(link.cell, CHAIN_START)
        chain = hashlib.blake2b(before + link.event + body, digest_size=_CHAIN_BYTES).digest()
        chains[link.cell] = chain
        if link.decision is not None and found[len(body) :] != b',"chain":"' + chain.hex().encode() + b'"}':
            ended[link.cell] = link.decision.id
    return {cell: id for cell, id in sorted(ended.items()) if id is not None}


def _claimed_id(value: bytes) -> str:
    """The id that a record starts with, even if the rest of it is unreadable."""
    match = re.match(rb'\{"id":"([A-Za-z0-9._-]{1,200})"', value)
    return match[1].decode() if match else ""


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
