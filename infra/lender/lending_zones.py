"""Zones that lend, their loans, and the servers that are present, read from compacted views."""

import threading
import time
from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from infra.errors import CommandError
from infra.log.reader import LogReader, decisions_in
from infra.log.target import Target
from schemas.loans import LoanChanged
from schemas.topics import ZONES_STATE
from schemas.view_records import ZoneState
from streams.kafka.records import ReadRecord

_TIMEOUT_S = 5.0
"""Longest wait for the state of a new zone."""
_RETRY_S = 0.2


def zone_states(records: Iterable[ReadRecord]) -> Iterator[ZoneState]:
    for record in records:
        try:
            yield ZoneState.model_validate_json(record.value or b"")
        except ValidationError:
            continue  # its policy is not installed here


def loans(records: Iterable[ReadRecord], cell: str, owner: str) -> list[LoanChanged]:
    """Return the latest change of each server that a zone lends, from records of `loans`."""
    latest: dict[str, LoanChanged] = {}
    for decision in decisions_in(records):
        match decision.outcome:
            case LoanChanged(owner=change_owner, server=server) as change:
                if (decision.cell, change_owner) == (cell, owner):
                    latest[server] = change
    return list(latest.values())


def lending_zone(target: Target, cell: str, zone: str, stop: threading.Event) -> ZoneState | None:
    """Return the present state of a zone that lends; None if `stop` is set before it is read.

    Raises:
        CommandError: the zone does not exist or does not lend.
        ReadError: the log cannot be read.
    """
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        with LogReader(target, [target.topic(ZONES_STATE)], "beginning") as reader:
            known = list(zone_states(reader.to_end(is_stopped=stop.is_set)))
        states = {(state.cell, state.zone.id): state for state in known}
        if stop.is_set():
            return None
        if (cell, zone) in states:
            return _that_lends(states, cell, zone)
        if time.monotonic() > deadline_s:
            raise CommandError(_missing(states, cell, zone))
        stop.wait(_RETRY_S)


def _that_lends(states: dict[tuple[str, str], ZoneState], cell: str, zone: str) -> ZoneState:
    if states[cell, zone].zone.lending is None:
        lending = sorted(name for (of, name), each in states.items() if of == cell and each.zone.lending)
        raise CommandError(
            f"zone {zone} of cell {cell} has no `lending` (zones that have: {', '.join(lending) or 'none'})"
        )
    return states[cell, zone]


def _missing(states: dict[tuple[str, str], ZoneState], cell: str, zone: str) -> str:
    zones = sorted(name for of, name in states if of == cell)
    if zones:
        return f"cell {cell} has no zone {zone}, it has {', '.join(zones)}"
    return f"there is no cell {cell} (cells: {', '.join(sorted({of for of, _ in states})) or 'none'})"


class Presence:
    """Servers of one zone, by the states of the zone and of its loans."""

    def __init__(self, zone: ZoneState, start_s: float) -> None:
        """Begin without loans.

        Args:
            start_s: Time after its return in which a server may still be starting, and is not expected.
        """
        self._start_s = start_s
        self._loans: dict[str, LoanChanged] = {}
        self.update_zone(zone)

    def update_zone(self, zone: ZoneState) -> None:
        self.owned = [node.id for node in zone.zone.nodes]
        """Servers of the zone, lent ones included, in the order of the configuration."""
        self._elsewhere = frozenset(zone.elsewhere)

    def update_loan(self, change: LoanChanged) -> None:
        self._loans[change.server] = change

    def expected(self, time_s: float) -> frozenset[str]:
        """Return the servers that could serve the zone at this time: not lent, and back for long enough."""
        return frozenset(server for server in self.owned if self._is_expected(server, time_s))

    def _is_expected(self, server: str, time_s: float) -> bool:
        if server in self._elsewhere:
            return False
        loan = self._loans.get(server)
        return loan is None or (loan.status == "returned" and time_s - loan.since_s >= self._start_s)


class PresenceReader:
    """Updates the presence of a zone's servers from the views `zones.state` and `loans`."""

    def __init__(self, target: Target, zone: ZoneState, start_s: float, stop: threading.Event) -> None:
        """Read the views to their end, or until `stop` is set.

        Raises:
            ReadError: the views cannot be read.
        """
        self._place = (zone.cell, zone.zone.id)
        self._presence = Presence(zone, start_s)
        self._zones = target.topic(ZONES_STATE)
        topics = [self._zones, target.topic(LoanChanged.VIEW)]
        # Position first: changes while the views are read are then read afterwards.
        self._changes = LogReader(target, topics, "end")
        with LogReader(target, topics, "beginning") as views:
            self._apply(list(views.to_end(is_stopped=stop.is_set)))

    def present(self) -> Presence:
        """Return the presence as of now.

        Raises:
            ReadError: the views cannot be read.
        """
        while records := self._changes.poll(0.0):
            self._apply(records)
        return self._presence

    def _apply(self, records: list[ReadRecord]) -> None:
        for state in zone_states(record for record in records if record.topic == self._zones):
            if (state.cell, state.zone.id) == self._place:
                self._presence.update_zone(state)
        for change in loans((record for record in records if record.topic != self._zones), *self._place):
            self._presence.update_loan(change)

    def close(self) -> None:
        self._changes.__exit__(None, None, None)
