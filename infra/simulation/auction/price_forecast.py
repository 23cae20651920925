"""Forecast of opening prices of future days, from a recorded ledger."""

from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from infra.simulation.what_if import events_of_cell, ledger_configuration
from schemas.auction.evidence import PriceBasis, ZonePriced
from schemas.auction.settings import OpeningPrices
from schemas.base import Event
from solvers.auction.forecast import forecast_opening_prices
from solvers.auction.market.fleet import Calendar
from solvers.auction.offline.hindsight import instances_of
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell


def forecast_from_ledger(
    path: Path, cell: str | None, left_out: Container[str] = ()
) -> dict[str, tuple[OpeningPrices, ...]]:
    """Return the forecast for each zone of a cell that got any bids, under any policy.

    Bids that were withdrawn later are demand like the others. A zone that forecasts its prices itself needs
    no other forecast: see `own_forecasts`.

    Args:
        path: Ledger file.
        cell: Cell that the user chose; None chooses the only one.
        left_out: Zones that need no forecast.

    Raises:
        ReplayError: the file is not a valid ledger.
        CommandError: the ledger does not configure the cell, or has several and none was chosen.
    """
    own = ledger_configuration(path, cell)
    events = _each_once(events_of_cell(path, own.cell, others_allowed=cell is not None))
    return {
        zone: forecast_opening_prices(instance, Calendar(own.epoch_s, own.slot_s))
        for zone, instance in instances_of(events).items()
        if instance.tasks and zone not in left_out
    }


def own_forecasts(path: Path, cell: str | None) -> dict[str, tuple[PriceBasis, tuple[float, ...] | None]]:
    """Return, for each zone that forecasts its prices itself, the basis of its prices at its last slot and
    the expected load by hour of day (`basis` and `expected_by_hour` of `ZonePriced`).

    Raises:
        ReplayError: the file is not a valid ledger.
        CommandError: the ledger does not configure the cell, or has several and none was chosen.
    """
    own = ledger_configuration(path, cell)
    folded, latest = Cell(own.cell), dict[str, ZonePriced]()
    for entry in events_of_cell(path, own.cell, others_allowed=cell is not None):
        for decision in folded.handle(entry):
            if isinstance(decision.outcome, ZonePriced):
                latest[decision.outcome.zone] = decision.outcome
    return {
        zone: (priced.basis, priced.expected_by_hour)
        for zone, priced in latest.items()
        if priced.basis is not None and zone in folded.zones
    }


def _each_once(entries: Iterable[LedgerEvent]) -> Iterator[Event]:
    seen: set[str] = set()
    for entry in entries:
        if entry.envelope.id not in seen:
            seen.add(entry.envelope.id)
            yield entry.envelope.event
