"""Stretches of a ledger, each decided by one version of the rules.

They are folded again if those rules are available, and joined by the states that the ledger names.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from schemas.cells import MAX_SNAPSHOT_BYTES, CellConfigured
from schemas.codec import Decision
from schemas.rules import RulesAdopted
from streams.cell.ledger_event import LedgerEvent
from streams.cell.rules import RuleBook, adoption_holds, state_digest
from streams.cell.state_machine import Cell, layout_of


class UnfitStateError(Exception):
    """A kept state differs from that in the ledger. The message states the reason."""


FindState = Callable[[str, str], bytes | None]
"""Function that returns the packed state of a cell under a digest, or None. It raises `UnfitStateError` if
the kept record is another state."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive events of a cell that are decided by one version of the rules."""

    cell: str
    rules: int | None
    """Version of the rules; None before the cell's configuration."""
    first_offset: int
    """Ledger offset of its first event, which adopts the rules, except in the first stretch."""
    last_offset: int
    state_digest: str | None
    """Digest of its initial state in the ledger; None if it starts without a state."""
    unverified: str | None
    """Reason why it could not be folded again; None if it was. Its chain is still followed."""

    def __str__(self) -> str:
        """Return one line for an operator."""
        line = f"ledger offsets {self.first_offset} to {self.last_offset} of cell {self.cell}"
        return f"{line} are not verified: they were decided by {self.unverified}"


@dataclass
class _Course:
    """Present stretch and state of a cell."""

    stretch: Stretch
    cell: Cell | None
    """Folded cell; None if its state is unknown."""


class StretchFold:
    """Fold of the ledger of one cell or more, as far as the rules are available."""

    def __init__(self, book: RuleBook, find_state: FindState) -> None:
        self._book = book
        self._find_state = find_state
        self._courses: dict[str, _Course] = {}
        self._past: list[Stretch] = []
        self.faults: list[str] = []
        """Stretches that do not join."""
        self.start_chains: dict[tuple[str, int], bytes] = {}
        """Initial chain of a stretch whose predecessor could not be folded, by cell and ledger offset: the
        found decisions must lead to it."""

    def fold(self, event: LedgerEvent) -> tuple[list[Decision], bytes] | None:
        """Fold the next event of a cell.

        Returns:
            The decisions that it demands, and the chain after it; None if they are unknown.

        Raises:
            ValueError: the events of a cell are not in the order of their offsets.
        """
        name, offset, what = event.envelope.event.cell, event.offset, event.envelope.event
        course = self._courses.get(name)
        if course is None:
            stretch = Stretch(name, None, offset, offset, None, None)
            course = self._courses[name] = _Course(stretch, Cell(name, self._book))
        elif offset <= course.stretch.last_offset:
            raise ValueError(f"cell {name}: offset {offset} comes after {course.stretch.last_offset}")
        rules, last = course.stretch.rules, course.stretch.last_offset
        if rules is None and isinstance(what, CellConfigured):
            self._configure(course, what, offset)
        elif isinstance(what, RulesAdopted) and rules is not None and adoption_holds(what, rules, last):
            self._adopt(course, what, offset)
        course.stretch = replace(course.stretch, last_offset=offset)
        if course.cell is None:
            return None
        decisions = course.cell.handle(event)
        return decisions, course.cell.chain

    def stretches(self) -> tuple[Stretch, ...]:
        """Return all stretches so far, cell by cell."""
        present = [course.stretch for course in self._courses.values()]
        return tuple(sorted([*self._past, *present], key=lambda each: (each.cell, each.first_offset)))

    def _configure(self, course: _Course, configured: CellConfigured, offset: int) -> None:
        lacks = self._book.get(configured.rules) is None
        why = self._book.lack_of(configured.rules) if lacks else None
        if offset > course.stretch.first_offset:
            self._past.append(course.stretch)
        course.stretch = Stretch(configured.cell, configured.rules, offset, offset, None, why)
        if lacks:
            course.cell = None

    def _adopt(self, course: _Course, adopted: RulesAdopted, offset: int) -> None:
        """Begin a stretch, with the final state of the previous one, or else with the kept one."""
        where = f"ledger offset {offset} of cell {adopted.cell}: rules {adopted.rules}"
        why: str | None = None
        if course.cell is not None:
            packed = course.cell.packed()
            digest = state_digest(packed)
            # Its digest would differ in another layout; the chain still leads from stretch to stretch.
            if digest != adopted.state_digest and adopted.state_layout == layout_of(packed):
                course.cell = None
                why = f"rules {adopted.rules}, from a state that is not the one before them"
                self.faults.append(
                    f"{where} were adopted from a state of digest {adopted.state_digest}, and the ledger "
                    f"leads to {digest}"
                )
        else:
            try:
                course.cell = self._kept(adopted)
            except UnfitStateError as fault:
                self.faults.append(f"{where} start from a state that is kept, and {fault}")
            if course.cell is None:
                why = f"rules {adopted.rules}, and the state that they start from is missing (digest "
                why += f"{adopted.state_digest})"
        if self._book.get(adopted.rules) is None:
            course.cell, why = None, self._book.lack_of(adopted.rules, adopted.release)
        self._past.append(course.stretch)
        course.stretch = Stretch(adopted.cell, adopted.rules, offset, offset, adopted.state_digest, why)

    def _kept(self, adopted: RulesAdopted) -> Cell | None:
        packed = self._find_state(adopted.cell, adopted.state_digest)
        if packed is None:
            return None
        try:
            cell = Cell.unpack(packed, self._book)
        except Exception as error:  # it has the right digest, but may still be anything
            raise UnfitStateError(f"it cannot be read: {type(error).__name__}: {error}") from None
        found = (cell.name, cell.rules, cell.offset)
        expected = (adopted.cell, adopted.previous_rules, adopted.state_offset)
        if found != expected:
            raise UnfitStateError(f"it is of cell, rules and ledger offset {found}, where {expected} was due")
        self.start_chains[cell.name, cell.offset] = cell.chain
        return cell


def no_state(_cell: str, _digest: str) -> None:
    """Return None: no states are kept."""


def unpacked_state(snapshot: bytes, digest: str) -> bytes:
    """Return the packed state in a kept record.

    Raises:
        UnfitStateError: the state has another digest.
    """
    expand = zlib.decompressobj()
    try:
        packed = expand.decompress(snapshot, MAX_SNAPSHOT_BYTES)
    except zlib.error as error:
        raise UnfitStateError(f"it cannot be read: {error}") from None
    found = state_digest(packed)
    if found != digest or expand.unconsumed_tail:
        raise UnfitStateError(f"its digest is {found}, where {digest} was due: it was altered")
    return packed
