"""Loans that a lender would have made on a series of loads, and the shortages of inference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infra.lender.forecast import Forecaster
from infra.lender.lending import Lender, LendingParameters
from infra.workloads.elastic.loads import INTERVAL_S
from schemas.cells import Zone
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceEvent, InferenceLoadReported
from schemas.loans import LoanChanged, LoanStatus, OfferAnswered, ReclaimPlanned

CELL = "c"
BORROWER = "training"


@dataclass(frozen=True)
class LendingRecord:
    """Record of the loans, interval by interval."""

    intervals: int
    """With a report."""
    short_intervals: int
    """In which the load needed more servers than were there."""
    lent_server_h: float
    lendable_server_h: float
    """Server hours that neither the load nor the headroom needed, computed afterwards."""
    loans: int
    """Servers lent, each time counted."""

    @property
    def short_fraction(self) -> float:
        """Part of the intervals in which inference was short."""
        return self.short_intervals / self.intervals

    @property
    def lent_fraction(self) -> float:
        """Part of what could have been lent that was."""
        return self.lent_server_h / self.lendable_server_h


def play(
    zone: Zone,
    loads: Sequence[float | None],
    forecaster: Forecaster,
    parameters: LendingParameters | None = None,
    counted_from: int = 0,
    watch: Callable[[int, Lender, list[InferenceEvent]], None] = lambda *_: None,
) -> LendingRecord:
    """Let a lender see a series of loads, one report per interval, None where none comes.

    The cell takes every offer, and every reclaimed server returns at its deadline and no sooner.

    Args:
        counted_from: the number of the first interval that counts.
        watch: called after each interval with what was decided in it.
    """
    lender = Lender(CELL, zone, forecaster, parameters)
    assert zone.lending is not None
    owned = len(zone.nodes)
    headroom = math.ceil(zone.lending.headroom * owned)
    lent: list[str] = []
    due: list[tuple[float, str]] = []
    counted = short = loans = 0
    lent_s = lendable_s = 0.0
    for index, load in enumerate(loads):
        time_s = 86_400 + index * INTERVAL_S
        while due and due[0][0] <= time_s:
            lender.on_decision(_changed(zone, due.pop(0)[1], "returned", time_s), "", time_s)
        if load is None:
            events = lender.pass_time(time_s)
        else:
            away = len(lent) + len(due)
            if index >= counted_from:
                counted += 1
                needed = math.ceil(load * owned)
                short += needed > owned - away
                lent_s += away * INTERVAL_S
                lendable_s += max(owned - needed - headroom, 0) * INTERVAL_S
            report = InferenceLoadReported(cell=CELL, zone=zone.id, time_s=time_s, load=load)
            events = lender.on_load(report)
        for event in events:
            match event:
                case CapacityOffered(servers=servers):
                    loans += len(servers) if index >= counted_from else 0
                    lent += servers
                    for server in servers:
                        lender.on_decision(_changed(zone, server, "on_loan", time_s), "", time_s)
                    answer = OfferAnswered(owner=zone.id, offer_id=event.offer_id, lent=servers, refused=())
                    lender.on_decision(answer, event.offer_id, time_s)
                case CapacityReclaimed(servers=count, due_s=due_s):
                    taken, lent = lent[-count:], lent[:-count]
                    due += [(due_s, server) for server in taken]
                    for server in taken:
                        lender.on_decision(_changed(zone, server, "draining", time_s), "", time_s)
                    plan = ReclaimPlanned(
                        owner=zone.id, reclaim_id=event.reclaim_id, due_s=due_s, servers=tuple(taken)
                    )
                    lender.on_decision(plan, event.reclaim_id, time_s)
        watch(index, lender, events)
    return LendingRecord(counted, short, lent_s / 3_600, lendable_s / 3_600, loans)


def _changed(zone: Zone, server: str, status: LoanStatus, time_s: float) -> LoanChanged:
    return LoanChanged(server=server, owner=zone.id, borrower=BORROWER, status=status, since_s=time_s)
