"""Lender of a zone in a simulation: the decisions of `millrace lender`, on virtual time."""

from infra.lender.forecast import SeasonalNaive
from infra.lender.lending import Lender
from infra.simulation.event_queue import Moments
from infra.simulation.simulator import Step
from schemas.cells import CellConfigured, Zone
from schemas.changes import ZoneConfigured
from schemas.decisions import EventWithoutEffect, NodeMoved, ZoneAccepted
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceEvent, InferenceLoadReported
from schemas.loans import LoanChanged, OfferAnswered, ReclaimPlanned

_FOLLOWED = (EventWithoutEffect, LoanChanged, OfferAnswered, ReclaimPlanned, NodeMoved)


class VirtualLender:
    """Participant that reacts to each load at once, with offers and reclaims (thesis, section 3.4).

    Forecasts are seasonal-naive. Between two loads it sends nothing, even if loads are missing: a simulation
    of missing loads needs the lender's events among its inputs.
    """

    def __init__(self, cell: str, zone: Zone) -> None:
        """Begin without loads.

        Args:
            cell: Name of the cell.
            zone: Zone that lends.
        """
        self._zone = zone.id
        self._lender = Lender(cell, zone, SeasonalNaive())

    def react(self, step: Step) -> Moments:
        """Return offers and reclaims at the time of a load."""
        event = step.entry.envelope.event
        match event:
            case CapacityOffered(zone=self._zone):
                self._lender.on_offer(event, step.entry.envelope.id, step.time_s)
            case CapacityReclaimed(zone=self._zone):
                self._lender.on_reclaim(event, step.entry.envelope.id, step.time_s)
        for decision in step.decisions:
            if isinstance(decision.outcome, _FOLLOWED):
                self._lender.on_decision(decision.outcome, step.entry.envelope.id, step.time_s)
        if isinstance(event, ZoneConfigured) and event.zone.id == self._zone:
            self._reconfigure(event.zone, step)
        events: list[InferenceEvent] = []
        if isinstance(event, InferenceLoadReported) and event.zone == self._zone:
            events = self._lender.on_load(event, step.time_s)
        return iter([(step.time_s, one) for one in events])

    def _reconfigure(self, zone: Zone, step: Step) -> None:
        """Apply the zone's new settings, unless it no longer lends: then the cell ignores the lender."""
        accepted = any(isinstance(decision.outcome, ZoneAccepted) for decision in step.decisions)
        if accepted and zone.lending is not None:
            self._lender.reconfigure(zone)


def lenders_of(cell: CellConfigured) -> list[VirtualLender]:
    """Return a lender for each zone that lends."""
    return [VirtualLender(cell.cell, zone) for zone in cell.zones if zone.lending is not None]
