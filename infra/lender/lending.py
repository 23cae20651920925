"""Decisions of the lender, which servers to lend and to want back, without Kafka, clock or torch."""

import math
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from infra.lender.forecast import Forecaster
from infra.lender.history import LoadHistory
from infra.lender.loans import Loans
from infra.lender.margin import Margin
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
"""Number of ids of answered offers and reclaims that are kept, for those that are read after their
answers."""


@dataclass(frozen=True)
class LendingParameters:
    """Balance of caution and capacity lent. docs/lender.md says how the defaults were found."""

    interval_s: float = 300.0
    """Offers are made once in so long, the time of one forecast (thesis, sections 3.6 and 3.7.1)."""
    steady_s: float = 1_800.0
    """Time for which offered servers were not needed before, and are not forecast to be needed after they
    could be back. It keeps a load that swings within this time from lending and reclaiming the same
    servers."""
    margin_quantile: float = 0.99
    """Plans leave room for this quantile of what loads have exceeded earlier plans by."""
    margin_s: float = 7 * 86_400.0
    """Plans of so long a time count for the margin."""
    history_s: float = 14 * 86_400.0
    """Loads of so long a time are kept for forecasts."""
    answer_s: float = 600.0
    """An offer or a reclaim that is not answered for so long counts as lost."""
    retry_s: float = 900.0
    """A server that was refused is not offered again for so long."""
    unknown_s: float = 900.0
    """Without a report of the load for so long, all that is lent is wanted back."""
    delay_s: float = 0.0
    """A reclaim may take so long to reach the cell, which counts the notice from then on."""

    def __post_init__(self) -> None:
        if not (self.interval_s > 0 and 0 <= self.margin_quantile <= 1 and self.unknown_s > 0):
            raise ValueError("interval_s and unknown_s must be above 0, and margin_quantile from 0 to 1")

    def intervals(self, duration_s: float) -> int:
        """Return the number of intervals of a duration, the last one in part."""
        return math.ceil(duration_s / self.interval_s)


class Lender:
    """Decides for one zone, event by event; the same inputs give the same events (thesis, section 3.4: the
    inference side decides by itself when and what to lend, and how many servers it wants back).

    A server that is wanted back now is there after the notice, and what is not wanted back now can be wanted
    back one interval later. So a **reclaim** provides for the highest of the present load and of those that
    are forecast until then. An **offer** provides for the highest load from `steady_s` ago to `steady_s`
    after that. Both leave the headroom that is never lent (section 3.7.1) on top of the load, or the margin
    (`Margin`) where that is more: both are there for bursts. What is needed for an offer is never less than
    for a reclaim, so a steady load leads to no reclaim.

    Ids are made of the time that led to an event, so a lender that is asked twice says the same twice. They
    are to be published as the ids of the CloudEvents too.
    """

    def __init__(
        self, cell: str, zone: Zone, forecaster: Forecaster, parameters: LendingParameters | None = None
    ) -> None:
        """Nothing is reported or lent yet.

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
        self._loans = Loans(_servers_of(zone))
        self._settled: dict[str, None] = {}
        """Ids of events that are answered, the oldest first."""
        self._refused_until_s: dict[str, float] = {}
        self._latest: InferenceLoadReported | None = None
        self._forecast: list[float] = []
        """For the intervals after the latest report's."""
        self._planned = -1
        """The latest interval for which was considered what to want back; negative before the first."""
        self._silent_since_s: float | None = None
        """The earliest time that it was told without any report."""

    # What it is told

    def reconfigure(self, zone: Zone) -> None:
        """Go on under a zone's new configuration.

        Raises:
            ValueError: the zone does not lend any more.
        """
        self._lending = _lending_of(zone)
        self._loans.owned = _servers_of(zone)

    def find(self, elsewhere: Iterable[str], loans: Iterable[LoanChanged]) -> None:
        """Begin with servers that are not at the zone's disposal: an operator lent them, or the cell did."""
        self._loans.away.update(elsewhere)
        for change in loans:
            if change.server in self._loans.owned and change.status != "returned":
                self._loans.away.add(change.server)
                self._loans.follow(change.server, change.status)

    def use(self, forecaster: Forecaster) -> None:
        """Have another forecaster from the next interval on."""
        self._forecaster = forecaster

    def remember(self, report: InferenceLoadReported, received_s: float = math.inf) -> bool:
        """Take in a report, and decide nothing because of it; True if it begins a new interval. One that is
        earlier than the latest, or repeats it, changes nothing.

        Args:
            received_s: a report that is stamped later counts as of this time, as in the cell: otherwise a
                sender whose clock is ahead would silence the others until its time comes.
        """
        report = _as_received(report, received_s)
        before = self.history.last
        if report == self._latest or not self.history.take(report.time_s, report.load):
            return False
        self._latest = report
        if self.history.last == before:
            return False
        self._forecast = self._forecaster.forecast(self.history, self._ahead + self._steady)
        self._margin.planned(self.history, self._ahead, max(report.load, *self._forecast[: self._ahead]))
        return True

    def take_load(
        self, report: InferenceLoadReported, received_s: float = math.inf, now_s: float | None = None
    ) -> list[InferenceEvent]:
        """Take in a report and say what to want back or, at the begin of an interval, what to offer.

        Args:
            received_s: see `remember`.
            now_s: the time from which the notice counts; by default the one that the report counts as of.
        """
        report = _as_received(report, received_s)
        if report.time_s < self.history.latest_s or report == self._latest:
            return []
        begins = self.remember(report)
        self._planned = self.history.last
        now_s = report.time_s if now_s is None else max(now_s, report.time_s)
        self._forget_lost(now_s)
        reclaims = self._reclaim(now_s, self._load_before(self._ahead))
        return reclaims if reclaims or not begins else self._offer(now_s)

    def pass_time(self, now_s: float) -> list[InferenceEvent]:
        """Say what to want back where reports fail to come, and when it starts to decide, whose predecessor
        may have left that open. Call it once per interval at least.

        Until `unknown_s` after the latest report the forecast stands in for it. Then the load is unknown, and
        everything is wanted back. Nothing is offered without a report.
        """
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        since_s = self._silent_since_s if self._latest is None else self._latest.time_s
        self._forget_lost(now_s)
        if now_s - since_s >= self.parameters.unknown_s:
            return self._reclaim(now_s, None)
        interval = math.floor(now_s / self.parameters.interval_s)
        is_first = self._planned < 0
        if self._latest is None or (not is_first and interval <= max(self.history.last + 1, self._planned)):
            return []
        self._planned = interval
        missing = max(interval - self.history.last, 0)
        return self._reclaim(now_s, self._load_before(missing + self._ahead))

    def take_offer(self, event: CapacityOffered, event_id: str, time_s: float) -> None:
        """Learn of an offer that somebody made for this zone, a lender before this one perhaps.

        Args:
            event_id: of the CloudEvent. Others may publish an offer under an id that is not the offer's own,
                or one whose own id was used before, and the cell names the event that it ignores.
        """
        if event_id not in self._settled:
            self._loans.offers.setdefault(event_id, (time_s, event.servers))

    def take_reclaim(self, event: CapacityReclaimed, event_id: str, time_s: float) -> None:
        """Learn of a reclaim that somebody made for this zone; see `take_offer`."""
        if event_id not in self._settled:
            self._loans.reclaims.setdefault(event_id, (time_s, event.servers))

    def take_outcome(self, outcome: Outcome, cause: str, time_s: float) -> None:
        """Follow what the cell decides at `time_s` because of the event with the id `cause`; what is about
        other zones and jobs is passed over.

        The lender may be asked between two decisions about one event. So an answer counts for its servers at
        once, before the changes of their loans are read.
        """
        match outcome:
            case LoanChanged(owner=self._zone):
                self._loans.follow(outcome.server, outcome.status)
            case OfferAnswered(owner=self._zone):
                self._settle(cause)
                for server in outcome.lent:
                    self._loans.follow(server, "on_loan")
                for refused in outcome.refused:
                    until_s = time_s + self.parameters.retry_s
                    self._refused_until_s |= dict.fromkeys(refused.servers, until_s)
            case ReclaimPlanned(owner=self._zone):
                self._settle(cause)
                for server in outcome.servers:
                    self._loans.follow(server, "draining")
            case EventWithoutEffect():
                self._settle(cause)
            case NodeMoved():
                self._follow_move(outcome)

    # How things stand

    def awaits(self, event_id: str) -> bool:
        """Whether the event with this id is an offer or a reclaim of this zone and is not answered."""
        return event_id in self._loans.offers or event_id in self._loans.reclaims

    @property
    def margin_load(self) -> float:
        """Margin of plans on top of loads at present, without the headroom."""
        return self._margin.load

    @property
    def forecast(self) -> tuple[float, ...]:
        """The loads of the intervals after the latest report's, as last foretold."""
        return tuple(self._forecast)

    @property
    def lent(self) -> frozenset[str]:
        """The zone's servers that are lent, those on their way back included."""
        return frozenset(self._loans.on_loan | self._loans.draining)

    # What it decides

    @property
    def _ahead(self) -> int:
        """Intervals until a server that is wanted back one interval from now is there."""
        parameters = self.parameters
        return parameters.intervals(parameters.interval_s + parameters.delay_s + self._lending.notice_s)

    @property
    def _steady(self) -> int:
        return self.parameters.intervals(self.parameters.steady_s)

    def _load_before(self, intervals: int) -> float:
        """The load to provide for from now on until so many intervals after the latest report's are over."""
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
        """Want back what a load needs that is not there or on its way; everything where it is unknown."""
        loans = self._loans
        count = loans.reclaimable
        if load is not None:
            coming = len(loans.draining) + min(loans.wanted, len(loans.on_loan))
            missing = self._servers_for(load) - (len(loans.owned) - len(loans.gone) + coming)
            count = min(count, missing)
        reclaims: list[InferenceEvent] = []
        for part, reclaimed in enumerate(range(0, count, MAX_SERVERS)):
            reclaim_id = _id("reclaim", now_s, part)
            if self._is_known(reclaim_id):
                continue
            reclaim = CapacityReclaimed(
                cell=self._cell,
                zone=self._zone,
                reclaim_id=reclaim_id,
                servers=min(count - reclaimed, MAX_SERVERS),
                due_s=now_s + self.parameters.delay_s + self._lending.notice_s,
            )
            self.take_reclaim(reclaim, reclaim_id, now_s)
            reclaims.append(reclaim)
        return reclaims

    def _offer(self, now_s: float) -> list[InferenceEvent]:
        """Offer what is idle and was and will be for a while, the last of the configuration first: who fills
        servers in that order keeps those that it uses."""
        past = [self.history.peak(self.history.last - back) for back in range(1, self._steady + 1)]
        known = [peak for peak in past if peak is not None]
        assert self._latest is not None
        if len(known) < len(past):
            return []  # too little is known of the load
        needed = max(self._load_before(self._ahead + self._steady), *known)
        loans = self._loans
        gone = loans.gone
        spare = len(loans.owned) - len(gone) - self._servers_for(needed)
        offer_id = _id("offer", now_s)
        if spare <= 0 or self._is_known(offer_id):
            return []
        serving = set(self._latest.serving)
        idle = [
            server
            for server in reversed(loans.owned)
            if server not in gone
            and server not in serving
            and self._refused_until_s.get(server, -math.inf) <= now_s
        ]
        servers = tuple(idle[: min(spare, MAX_SERVERS)])
        if not servers:
            return []
        offer = CapacityOffered(cell=self._cell, zone=self._zone, offer_id=offer_id, servers=servers)
        self.take_offer(offer, offer_id, now_s)
        return [offer]

    # What it keeps track of

    def _settle(self, event_id: str) -> None:
        self._loans.offers.pop(event_id, None)
        self._loans.reclaims.pop(event_id, None)
        self._settled.pop(event_id, None)
        self._settled[event_id] = None
        if len(self._settled) > _SETTLED_IDS:
            del self._settled[next(iter(self._settled))]

    def _is_known(self, event_id: str) -> bool:
        return self.awaits(event_id) or event_id in self._settled

    def _forget_lost(self, now_s: float) -> None:
        """Give up waiting for answers that do not come, as when the cell has never got the question."""
        loans, lost_s = self._loans, now_s - self.parameters.answer_s
        _drop(loans.offers, [name for name, (made_s, _) in loans.offers.items() if made_s <= lost_s])
        _drop(loans.reclaims, [name for name, (made_s, _) in loans.reclaims.items() if made_s <= lost_s])
        refused = self._refused_until_s
        _drop(refused, [server for server, until_s in refused.items() if until_s <= now_s])

    def _follow_move(self, move: NodeMoved) -> None:
        loans, server = self._loans, move.node
        if move.from_zone is None and move.to_zone == self._zone:
            loans.owned.setdefault(server)
        if server not in loans.owned:
            return
        loans.away.discard(server)
        if move.to_zone is None:
            del loans.owned[server]
            loans.on_loan.discard(server)
            loans.draining.discard(server)
        elif move.to_zone != self._zone:
            loans.away.add(server)


def _as_received(report: InferenceLoadReported, received_s: float) -> InferenceLoadReported:
    """A report as of its own time, or of when it was received where that is sooner."""
    return report if report.time_s <= received_s else report.model_copy(update={"time_s": received_s})


def _drop(values: MutableMapping[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        del values[key]


def _id(kind: str, time_s: float, part: int = 0) -> str:
    """Return the id of an offer or a reclaim, by the millisecond.

    Args:
        part: rank among those that are made at once, since one event names only so many servers.
    """
    return f"{kind}-{round(time_s * 1_000)}{f'-{part}' if part else ''}"


def _servers_of(zone: Zone) -> dict[str, None]:
    return dict.fromkeys(node.id for node in zone.nodes)


def _lending_of(zone: Zone) -> Lending:
    if zone.lending is None:
        raise ValueError(f"zone {zone.id} does not lend: its configuration has no `lending`")
    return zone.lending
