"""Zones that lend, and their loans, read from compacted views."""

import threading
import time
from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from infra.errors import CommandError
from infra.log.reader import LogReader
from infra.log.target import Target
from schemas.codec import InvalidRecordError, decode_decision
from schemas.loans import LoanChanged
from schemas.topics import ZONES_STATE
from schemas.views import ZoneState
from streams.kafka.records import ReadRecord

_TIMEOUT_S = 5.0
"""Longest wait for the state of a new zone."""
_RETRY_S = 0.2


def zone_states(records: Iterable[ReadRecord]) -> Iterator[ZoneState]:
    """Yield the states in records of `zones.state`."""
    for record in records:
        try:
            yield ZoneState.model_validate_json(record.value or b"")
        except ValidationError:
            continue  # its policy is not installed here


def loans(records: Iterable[ReadRecord], cell: str, owner: str) -> list[LoanChanged]:
    """Return the latest change of each server that a zone lends, from records of `loans`."""
    latest: dict[str, LoanChanged] = {}
    for record in records:
        try:
            decision = decode_decision(record.value or b"")
        except InvalidRecordError:
            continue  # replay reports it
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
