"""State that a cell returns to when folding an event has raised, and exceptions that the event causes."""

import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from schemas.base import Event
from schemas.decisions import EventFaulted
from streams.cell.ledger_event import LedgerEvent
from streams.cell.places import place_of

T = TypeVar("T")

_LEAST_SINCE, _MOST_SINCE = 256, 2_048
_BYTES_PER_EVENT = 1_536
"""A cell is packed after `bytes / 1,536` events, within bounds: that limits the events to fold again after an
exception. Packing costs some 5 microseconds per event. A worker packs its cells for snapshots about as
often."""
_MOST_BYTES_SINCE = 4 * 2**20
"""Most bytes of events that are kept to be folded again: one may have a MiB."""

_OF_THE_MACHINE = (MemoryError, OSError, ImportError, Warning)
"""A full memory or disk, a broken installation, and warnings that a process is set to raise are not faults of
the event. The process ends, and folds the event when it is started again."""


@dataclass
class Kept:
    """The last packed state of a cell, and the events that were folded since."""

    packed: bytes | None = None
    """Packed state; None before the first, when the cell was empty."""
    place: tuple[int, bytes] | None = None
    """Ledger offset and chain after the events that raised right after the packed state; None without any."""
    since: list[LedgerEvent] = field(default_factory=list)
    _since_bytes: int = 0

    def keep(self, packed: bytes) -> None:
        """Keep a packed state."""
        self.packed, self.place = packed, None
        self.since.clear()
        self._since_bytes = 0

    def follow(self, event: LedgerEvent) -> bool:
        """Note an event that was folded, and return whether the cell is to be packed again."""
        self.since.append(event)
        self._since_bytes += len(event.envelope.value)
        most = len(self.packed or b"") // _BYTES_PER_EVENT
        is_many = len(self.since) >= min(max(most, _LEAST_SINCE), _MOST_SINCE)
        return is_many or self._since_bytes >= _MOST_BYTES_SINCE

    def pass_over(self, offset: int, chain: bytes) -> None:
        """Note an event that raised, and changed only the place of the cell in its ledger."""
        assert not self.since
        self.place = offset, chain


def is_of_the_machine(error: BaseException) -> bool:
    """Return whether an exception, or a cause of it, is a fault of the machine and not of the event."""
    return any(isinstance(each, _OF_THE_MACHINE) for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = set[int]()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def on_a_fresh_stack(work: Callable[[], T]) -> T:
    """Call a function in a thread of its own, so that neither the depth of its calls nor its arithmetic
    depends on the caller's thread."""
    with ThreadPoolExecutor(1, "fold-again") as thread:
        return thread.submit(work).result()


def fault_of(event: LedgerEvent, error: Exception) -> EventFaulted:
    """Return the record of an event that raised."""
    place, what = place_of(error), event.envelope.event
    return EventFaulted(
        reason="cell_raised" if place.zone is None else "policy_raised",
        event_id=event.envelope.id,
        event_type=what.TYPE,
        exception=_builtin_name(type(error)),
        zone=place.zone,
        place=place.name,
        job_id=_job_of(what),
    )


def _builtin_name(kind: type[Exception]) -> str:
    """Return the name of the nearest built-in type: the names of other types may change with the code."""
    return next(each.__name__ for each in kind.__mro__ if each.__module__ == "builtins")


def _job_of(event: Event) -> str | None:
    job_id = getattr(event, "job_id", None)
    return job_id if isinstance(job_id, str) else None


def traced(error: Exception) -> str:
    """Return the traceback, for a log."""
    return "".join(traceback.format_exception(error)).rstrip()
