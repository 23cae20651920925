"""Log lines for events that changed nothing because folding them raised."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from schemas.codec import Decision
from schemas.decisions import EventFaulted
from schemas.text import plain
from streams.cell.cell import Cell

METRIC = "events_faulted"

_log = logging.getLogger(__name__)


class FaultLog:
    """Logs the first fault of each kind with its traceback, and then only the tenth, the hundredth and so on,
    as a flood of such events must not fill the disk. All are counted."""

    def __init__(self, count: Callable[[str], None] = lambda _: None) -> None:
        """Begin without faults.

        Args:
            count: called with `METRIC` for each fault.
        """
        self._count = count
        self._seen: Counter[tuple[str, str | None, str, str]] = Counter()
        """Number of faults, by cell, zone, place and exception."""

    def log_fault(self, cell: Cell, decisions: Iterable[Decision]) -> None:
        """Log the fault among the decisions on an event, if any."""
        for decision in decisions:
            if isinstance(fault := decision.outcome, EventFaulted):
                self._count(METRIC)
                self._log(cell, decision.id, fault)

    def _log(self, cell: Cell, id: str, fault: EventFaulted) -> None:
        kind = cell.name, fault.zone, fault.place, fault.exception
        self._seen[kind] += 1
        number = self._seen[kind]
        if not _is_power_of_ten(number):
            return
        _log.error(
            "faulted cell=%s decision=%s event=%s type=%s exception=%s zone=%s place=%s so_far=%d%s",
            cell.name,
            id,
            plain(fault.event_id),
            fault.event_type,
            fault.exception,
            fault.zone,
            fault.place,
            number,
            f"\n{cell.last_fault}" if number == 1 else "",
        )


def _is_power_of_ten(number: int) -> bool:
    return str(number).strip("0") == "1"
