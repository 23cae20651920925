"""Decisions of the lender, which servers to lend and to reclaim, without Kafka, clock or torch."""

import math
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from infra.lender.forecast import Forecaster
from infra.lender.history import LoadHistory, Margin
from infra.lender.loans import LoanBook
from schemas.base import Outcome
from schemas.cells import Lending, Zone
from schemas.decisions import EventWithoutEffect, NodeMoved
from schemas.inference import (
    MAX_SERVERS,
    CapacityOffered,
    CapacityReclaimed,
    InferenceEvent,
    InferenceLoadReported,
)
from schemas.loans import LoanChanged, OfferAnswered, ReclaimPlanned

_SETTLED_IDS = 4_096
"""Number of ids of answered offers and reclaims that are kept, as some are read after their answers."""


@dataclass(frozen=True)
class LendingParameters:
    """Balance of caution and capacity lent. docs/lender.md explains the defaults."""

    interval_s: float = 300.0
    """Interval of forecasts and of offers (thesis, sections 3.6 and 3.7.1)."""
    steady_s: float = 1_800.0
    """Time for which offered servers were not needed before, and are not forecast to be needed after they
    could be back. It keeps a load that swings within this time from lending and reclaiming the same
    servers."""
    margin_quantile: float = 0.99
    """Quantile, over earlier plans, of the load above the planned one, for which plans leave room."""
    margin_s: float = 7 * 86_400.0
    """Time for which plans count for the margin."""
    history_s: float = 14 * 86_400.0
    """Time for which loads are kept for forecasts."""
    answer_s: float = 600.0
    """Time after which an offer or a reclaim without an answer counts as lost."""
    retry_s: float = 900.0
    """Time for which a server that was refused is not offered again."""
    unknown_s: float = 900.0
    """Time without a report of the load after which all lent servers are reclaimed."""
    delay_s: float = 0.0
    """Longest time until a reclaim reaches the cell, which counts the notice from then on."""

    def __post_init__(self) -> None:
        if not (self.interval_s > 0 and 0 <= self.margin_quantile <= 1 and self.unknown_s > 0):
            raise ValueError("interval_s and unknown_s must be above 0, and margin_quantile from 0 to 1")

    def intervals(self, duration_s: float) -> int:
        """Return the number of intervals of a duration, the last one in part."""
        return math.ceil(duration_s / self.interval_s)


class Lender:
    """Decides for one zone, event by event; the same inputs give the same events (thesis, section 3.4: the
    inference side decides by itself when and what to lend, and how many servers to reclaim).

    A server that is reclaimed now is back after the notice, and the next reclaim is one interval later. So a
    **reclaim** provides for the highest of the present load and of those that are forecast until a server of
    the next reclaim is back. An **offer** provides for the highest load from `steady_s` ago to `steady_s`
    after that time. Both leave room for bursts on top of the load: the headroom that is never lent (section
    3.7.1), or the margin (`Margin`) where that is more. An offer never provides for less than a reclaim, so a
    steady load leads to no reclaim.

    Ids are made of the time that led to an event, so equal inputs give equal ids. They are also the ids of
    the published CloudEvents.
    """

    def __init__(
        self, cell: str, zone: Zone, forecaster: Forecaster, parameters: LendingParameters | None = None
    ) -> None:
        """Begin without reports and loans.

        Raises:
            ValueError: the zone does not lend.
        """
        self.parameters = parameters or LendingParameters()
        self.history = LoadHistory(
            self.parameters.interval_s, self.parameters.intervals(self.parameters.history_s)
        )
        self._cell = cell
        self._zone = zone.id
        self._lending = _lending_of(zone)
        self._forecaster = forecaster
        self._margin = Margin(
            self.parameters.margin_quantile, self.parameters.intervals(self.parameters.margin_s)
        )
        self._loans = LoanBook(_servers_of(zone))
        self._settled: dict[str, None] = {}
        """Ids of answered offers and reclaims, the oldest first."""
        self._refused_until_s: dict[str, float] = {}
        self._latest: InferenceLoadReported | None = None
        self._forecast: list[float] = []
        """Loads of the intervals after the latest report's."""
        self._planned = -1
        """Latest interval for which reclaims were considered; negative before the first."""
        self._silent_since_s: float | None = None
        """Earliest time that was passed without any report."""

    # Inputs

    def reconfigure(self, zone: Zone) -> None:
        """Apply a zone's new configuration.

        Raises:
            ValueError: the zone no longer lends.
        """
        self._lending = _lending_of(zone)
        self._loans.owned = _servers_of(zone)

    def restore_loans(self, elsewhere: Iterable[str], loans: Iterable[LoanChanged]) -> None:
        """Begin with servers that do not serve the zone: an operator or the cell lent them."""
        self._loans.away.update(elsewhere)
        for change in loans:
            if change.server in self._loans.owned and change.status != "returned":
                self._loans.away.add(change.server)
                self._loans.update(change.server, change.status)

    def use_forecaster(self, forecaster: Forecaster) -> None:
        """Replace the forecaster from the next interval on."""
        self._forecaster = forecaster

    def record_load(self, report: InferenceLoadReported, received_s: float = math.inf) -> bool:
        """Record a report without deciding; return whether it begins a new interval.

        A report that is earlier than the latest, or repeats it, changes nothing.

        Args:
            received_s: Time of receipt. A report with a later time counts as of the present time, as in the
                cell. Otherwise, a sender with a fast clock would make later reports of others stale until its
                time is reached.
        """
        report = _as_received(report, received_s)
        before = self.history.last
        if report == self._latest or not self.history.add(report.time_s, report.load):
            return False
        self._latest = report
        if self.history.last == before:
            return False
        self._forecast = self._forecaster.forecast(self.history, self._ahead + self._steady)
        self._margin.add_plan(self.history, self._ahead, max(report.load, *self._forecast[: self._ahead]))
        return True

    def on_load(
        self, report: InferenceLoadReported, received_s: float = math.inf, now_s: float | None = None
    ) -> list[InferenceEvent]:
        """Record a report and return reclaims or, at the start of an interval, an offer.

        Args:
            received_s: Time of receipt, as in `record_load`.
            now_s: Time from which the notice counts; by default, the time as of which the report counts.
        """
        report = _as_received(report, received_s)
        if report.time_s < self.history.latest_s or report == self._latest:
            return []
        begins = self.record_load(report)
        self._planned = self.history.last
        now_s = report.time_s if now_s is None else max(now_s, report.time_s)
        self._drop_expired(now_s)
        reclaims = self._reclaim(now_s, self._load_before(self._ahead))
        return reclaims if reclaims or not begins else self._offer(now_s)

    def pass_time(self, now_s: float) -> list[InferenceEvent]:
        """Return reclaims where reports are missing, and at the start, as a lender before this one may have
        ended before its decision. Call it once per interval at least.

        Until `unknown_s` after the latest report, the forecast stands in for it. Then the load is unknown,
        and all servers are reclaimed. Nothing is offered without a report.
        """
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        since_s = self._silent_since_s if self._latest is None else self._latest.time_s
        self._drop_expired(now_s)
        if now_s - since_s >= self.parameters.unknown_s:
            return self._reclaim(now_s, None)
        interval = math.floor(now_s / self.parameters.interval_s)
        is_first = self._planned < 0
        if self._latest is None or (not is_first and interval <= max(self.history.last + 1, self._planned)):
            return []
        self._planned = interval
        missing = max(interval - self.history.last, 0)
        return self._reclaim(now_s, self._load_before(missing + self._ahead))

    def on_offer(self, event: CapacityOffered, event_id: str, time_s: float) -> None:
        """Record an offer of this zone, such as one of a lender before this one.

        Args:
            event_id: Id of the CloudEvent. Others may publish an offer under an id that is not the offer's
                own, or that was used before, and the cell names the event that it ignores.
        """
        if event_id not in self._settled:
            self._loans.offers.setdefault(event_id, (time_s, event.servers))

    def on_reclaim(self, event: CapacityReclaimed, event_id: str, time_s: float) -> None:
        """Record a reclaim of this zone, with the arguments of `on_offer`."""
        if event_id not in self._settled:
            self._loans.reclaims.setdefault(event_id, (time_s, event.servers))

    def on_decision(self, outcome: Outcome, cause: str, time_s: float) -> None:
        """Apply a decision of the cell at `time_s` about the event with the id `cause`; ignore those about
        other zones and jobs.

        Inputs may come between two decisions about one event. So an answer counts for its servers at once,
        before the changes of their loans are read.
        """
        match outcome:
            case LoanChanged(owner=self._zone):
                self._loans.update(outcome.server, outcome.status)
            case OfferAnswered(owner=self._zone):
                self._settle(cause)
                for server in outcome.lent:
                    self._loans.update(server, "on_loan")
                for refused in outcome.refused:
                    until_s = time_s + self.parameters.retry_s
                    self._refused_until_s |= dict.fromkeys(refused.servers, until_s)
            case ReclaimPlanned(owner=self._zone):
                self._settle(cause)
                for server in outcome.servers:
                    self._loans.update(server, "draining")
            case EventWithoutEffect():
                self._settle(cause)
            case NodeMoved():
                self._apply_move(outcome)

    # State

    def awaits(self, event_id: str) -> bool:
        """Return whether the event with this id is an offer or a reclaim of this zone without an answer."""
        return event_id in self._loans.offers or event_id in self._loans.reclaims

    @property
    def margin_load(self) -> float:
        """Margin of plans on top of loads at present, without the headroom."""
        return self._margin.load

    @property
    def forecast(self) -> tuple[float, ...]:
        """Latest forecast of the loads of the intervals after the latest report's."""
        return tuple(self._forecast)

    @property
    def lent(self) -> frozenset[str]:
        """The zone's servers that are lent, those on their way back included."""
        return frozenset(self._loans.lent)

    # Decisions

    @property
    def _ahead(self) -> int:
        """Intervals until a server that is reclaimed one interval from now is back."""
        parameters = self.parameters
        return parameters.intervals(parameters.interval_s + parameters.delay_s + self._lending.notice_s)

    @property
    def _steady(self) -> int:
        return self.parameters.intervals(self.parameters.steady_s)

    def _load_before(self, intervals: int) -> float:
        """Return the highest load from now until `intervals` after the latest report's are over."""
        assert self._latest is not None
        return max(self._latest.load, *self._forecast[:intervals])

    def _servers_for(self, load: float) -> int:
        """Return the number of servers that the zone needs for a planned load. The headroom counts
        as it does in the cell, where it is one server at least."""
        owned = len(self._loans.owned)
        headroom = max(math.ceil(self._lending.headroom * owned), 1)
        with_margin = math.ceil((load + self._margin.load) * owned)
        return min(max(math.ceil(load * owned) + headroom, with_margin), owned)

    def _reclaim(self, now_s: float, load: float | None) -> list[InferenceEvent]:
        """Return reclaims of the servers that a load needs in addition; of all if the load is unknown."""
        loans = self._loans
        count = loans.reclaimable
        if load is not None:
            coming = loans.count("draining") + min(loans.requested, loans.count("on_loan"))
            missing = self._servers_for(load) - (len(loans.owned) - len(loans.unavailable) + coming)
            count = min(count, missing)
        reclaims: list[InferenceEvent] = []
        for part, reclaimed in enumerate(range(0, count, MAX_SERVERS)):
            reclaim_id = _id("reclaim", now_s, part)
            if self._is_used(reclaim_id):
                continue
            reclaim = CapacityReclaimed(
                cell=self._cell,
                zone=self._zone,
                reclaim_id=reclaim_id,
                servers=min(count - reclaimed, MAX_SERVERS),
                due_s=now_s + self.parameters.delay_s + self._lending.notice_s,
            )
            self.on_reclaim(reclaim, reclaim_id, now_s)
            reclaims.append(reclaim)
        return reclaims

    def _offer(self, now_s: float) -> list[InferenceEvent]:
        """Return an offer of servers that are idle, were for a while and will be for a while.

        The last servers of the configuration come first: a load that fills servers in that order keeps its
        own.
        """
        past = [self.history.peak(self.history.last - back) for back in range(1, self._steady + 1)]
        known = [peak for peak in past if peak is not None]
        assert self._latest is not None
        if len(known) < len(past):
            return []  # the load of some intervals is unknown
        needed = max(self._load_before(self._ahead + self._steady), *known)
        loans = self._loans
        unavailable = loans.unavailable
        spare = len(loans.owned) - len(unavailable) - self._servers_for(needed)
        offer_id = _id("offer", now_s)
        if spare <= 0 or self._is_used(offer_id):
            return []
        serving = set(self._latest.serving)
        idle = [
            server
            for server in reversed(loans.owned)
            if server not in unavailable
            and server not in serving
            and self._refused_until_s.get(server, -math.inf) <= now_s
        ]
        servers = tuple(idle[: min(spare, MAX_SERVERS)])
        if not servers:
            return []
        offer = CapacityOffered(cell=self._cell, zone=self._zone, offer_id=offer_id, servers=servers)
        self.on_offer(offer, offer_id, now_s)
        return [offer]

    # Bookkeeping

    def _settle(self, event_id: str) -> None:
        self._loans.offers.pop(event_id, None)
        self._loans.reclaims.pop(event_id, None)
        self._settled.pop(event_id, None)
        self._settled[event_id] = None
        if len(self._settled) > _SETTLED_IDS:
            del self._settled[next(iter(self._settled))]

    def _is_used(self, event_id: str) -> bool:
        return self.awaits(event_id) or event_id in self._settled

    def _drop_expired(self, now_s: float) -> None:
        """Drop offers and reclaims without an answer in time, such as one that the cell never received."""
        loans, lost_s = self._loans, now_s - self.parameters.answer_s
        _drop(loans.offers, [name for name, (made_s, _) in loans.offers.items() if made_s <= lost_s])
        _drop(loans.reclaims, [name for name, (made_s, _) in loans.reclaims.items() if made_s <= lost_s])
        refused = self._refused_until_s
        _drop(refused, [server for server, until_s in refused.items() if until_s <= now_s])

    def _apply_move(self, move: NodeMoved) -> None:
        loans, server = self._loans, move.node
        if move.from_zone is None and move.to_zone == self._zone:
            loans.owned.setdefault(server)
        if server not in loans.owned:
            return
        loans.away.discard(server)
        if move.to_zone is None:
            del loans.owned[server]
            loans.lent.pop(server, None)
        elif move.to_zone != self._zone:
            loans.away.add(server)


def _as_received(report: InferenceLoadReported, received_s: float) -> InferenceLoadReported:
    """Return a report as of its own time, or of its receipt where that is earlier."""
    return report if report.time_s <= received_s else report.model_copy(update={"time_s": received_s})


def _drop(values: MutableMapping[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        del values[key]


def _id(kind: str, time_s: float, part: int = 0) -> str:
    """Return the id of an offer or a reclaim, by the millisecond.

    Args:
        part: Rank among events of one time, as an event has at most `MAX_SERVERS`.
    """
    return f"{kind}-{round(time_s * 1_000)}{f'-{part}' if part else ''}"


def _servers_of(zone: Zone) -> dict[str, None]:
    return dict.fromkeys(node.id for node in zone.nodes)


def _lending_of(zone: Zone) -> Lending:
    if zone.lending is None:
        raise ValueError(f"zone {zone.id} does not lend: its configuration has no `lending`")
    return zone.lending
