"""The lender's service: reads loads and decisions from the log, and publishes offers and reclaims."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from infra.lender.forecast import Forecaster, SeasonalNaive, Selection
from infra.lender.lending import Lender, LendingParameters
from infra.lender.lending_zones import lending_zone, loans, zone_states
from infra.log.publisher import EventPublisher, PublishError
from infra.log.reader import LogReader, decisions_in
from infra.log.target import ANSWER_TIMEOUT_S, Target
from infra.views.sentences import sentence
from schemas.access import use_of_topics
from schemas.base import Outcome
from schemas.codec import Decision, InvalidRecordError, decode_event
from schemas.decisions import EventFaulted, EventIgnored, EventWithoutEffect, NodeMoved
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceEvent, InferenceLoadReported
from schemas.loans import LoanChanged, OfferAnswered, ReclaimEnded, ReclaimPlanned
from schemas.service_base import SHORTEST_S, ServiceSettings
from schemas.topics import DECISIONS, INFERENCE, ZONES_STATE
from schemas.view_records import ZoneState
from streams.kafka.administration import Administration
from streams.kafka.faults import BrokerError
from streams.kafka.reader import ReadError
from streams.kafka.records import ReadRecord

LEAST_INTERVAL_S = 0.5
"""Shortest interval. The lender reads the log and the clock a few times a second. It keeps the intervals of
two weeks, so two million of this length."""
Duration = Annotated[float, Field(ge=SHORTEST_S, le=31_536_000)]


SOURCE = "millrace/lender"
_POLL_S = 0.2
_RETRY_S = 1.0
"""Delay between two attempts to reach a broker."""
_SLACK_S = 300.0
"""Longest time from a decision to the views that follow from it, and between clocks."""
_FOLLOWED: tuple[type[Outcome], ...] = (
    EventFaulted,
    EventIgnored,
    LoanChanged,
    NodeMoved,
    OfferAnswered,
    ReclaimEnded,
    ReclaimPlanned,
)


class LenderSettings(ServiceSettings):
    """Settings of one lender: `MILLRACE_LENDER_*`. `LendingParameters` explains those with its names."""

    lender_forecaster: Literal["lstm", "seasonal"] = "lstm"
    """`lstm`: the best of the last value, the seasonal-naive forecast and the LSTM, which needs torch.
    `seasonal`: the better of the first two."""
    lender_interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=31_536_000)] = 300.0
    """Interval of forecasts; a load is expected at least once in it."""
    lender_steady_s: Annotated[float, Field(ge=0, le=604_800)] = 1_800.0
    """Time for which offered servers were not needed before, and are not forecast to be needed."""
    lender_margin_quantile: Annotated[float, Field(ge=0, le=1)] = 0.99
    """Quantile, over earlier plans, of the load above the planned one, for which plans leave room."""
    lender_unknown_s: Duration = 900.0
    """Time without a report of the load after which all lent servers are reclaimed."""
    lender_delay_s: Annotated[float, Field(ge=0, le=3_600)] = 5.0
    """Longest time until a reclaim reaches the cell, and largest difference of clocks."""
    lender_retrain_s: Duration = 6 * 3_600.0
    """Interval of the LSTM's trainings."""
    lender_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the LSTM's training."""

    @property
    def parameters(self) -> LendingParameters:
        """Parameters of decisions."""
        return LendingParameters(
            interval_s=self.lender_interval_s,
            steady_s=self.lender_steady_s,
            margin_quantile=self.lender_margin_quantile,
            unknown_s=self.lender_unknown_s,
            delay_s=self.lender_delay_s,
        )


_log = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]
"""Gets a flat JSON object about one interval, one offer or one reclaim."""


class LenderService:
    """Runs the lender of one zone.

    All of its state comes from topics: loads, and offers and reclaims without an answer, from `inference`;
    the zone and the places of its servers, from compacted views and the decisions since shortly before. So a
    new process goes on where the one before it ended, and repeats nothing that is in the log already. The
    time to start does not depend on the age of the log.
    """

    def __init__(
        self,
        target: Target,
        settings: LenderSettings,
        cell: str,
        zone: str,
        report: Report,
        stop: threading.Event,
    ) -> None:
        """Position the readers of the log.

        Raises:
            BrokerError: the broker does not answer, or a topic or a permission is missing.
            ReadError: the log cannot be read.
        """
        Administration(target.kafka, ANSWER_TIMEOUT_S).require(use_of_topics("inference", target.prefix))
        self._target, self._settings = target, settings
        self._cell, self._zone = cell, zone
        self._report, self._stop = report, stop
        parameters, now_s = settings.parameters, time.time()
        # Positions first: changes of the zone after it was read are then read afterwards.
        # Older answers are to events that count as lost, or about servers that may be offered again.
        answered_s = now_s - max(parameters.answer_s, parameters.retry_s) - _SLACK_S
        self._log_of_zones = LogReader(target, [target.topic(ZONES_STATE)], "end")
        self._log_of_decisions = LogReader(target, [target.topic(DECISIONS)], answered_s)
        self._log_of_loads = LogReader(target, [target.topic(INFERENCE)], now_s - parameters.history_s)
        self._lender: Lender
        """Set as soon as the zone is read."""
        self._forecaster: Forecaster = SeasonalNaive()
        self._applied = (-1, -1)
        """Place of the latest decision that was applied."""
        self._unsent: list[InferenceEvent] = []
        self._publisher: EventPublisher | None = None

    def serve(self) -> None:
        """Catch up with the log, then decide until stopped.

        Raises:
            ReadError: the log cannot be read.
            CommandError: the zone does not exist or does not lend.
        """
        stopped = self._stop.is_set
        with self._log_of_zones as zones, self._log_of_decisions as decisions, self._log_of_loads as loads:
            found = lending_zone(self._target, self._cell, self._zone, self._stop)
            if found is None:
                return
            self._begin(found)
            for decision in self._decisions(decisions.to_end(is_stopped=stopped)):
                self._apply(decision)
            for record, event_id, event in self._events(loads.to_end(is_stopped=stopped)):
                self._record(record, event_id, event)
            if stopped():
                return
            self._forecaster = forecaster(self._settings)
            self._lender.use_forecaster(self._forecaster)
            _log.info(
                "lender ready cell=%s zone=%s lent=%d loads since %s",
                self._cell,
                self._zone,
                len(self._lender.lent),
                "now" if self._lender.history.last < 0 else self._lender.history.first_s,
            )
            while not stopped():
                try:
                    for state in zone_states(zones.poll(0.0)):
                        self._reconfigure(state)
                    for decision in self._decisions(iter(decisions.poll(0.0))):
                        self._apply(decision)
                    for record, event_id, event in self._events(iter(loads.poll(_POLL_S))):
                        self._on_event(record, event_id, event)
                except ReadError as error:
                    _log.warning("%s; tried again", error)
                    self._stop.wait(_RETRY_S)
                self._queue(self._lender.pass_time(time.time()))
                self._send()

    def _begin(self, found: ZoneState) -> None:
        """Make the lender of a zone with its present loans."""
        self._lender = Lender(self._cell, found.zone, SeasonalNaive(), self._settings.parameters)
        with LogReader(self._target, [self._target.topic(LoanChanged.VIEW)], "beginning") as view:
            present = loans(view.to_end(is_stopped=self._stop.is_set), self._cell, self._zone)
        self._lender.restore_loans(found.elsewhere, present)

    def _decisions(self, records: Iterator[ReadRecord]) -> Iterator[Decision]:
        """Yield the relevant decisions of the cell, each once: a worker that was killed leaves duplicates."""
        for decision in decisions_in(records, *_FOLLOWED):
            try:
                is_new = decision.cell == self._cell and decision.place > self._applied
            except InvalidRecordError:
                continue  # replay reports it
            if is_new:
                self._applied = decision.place
                yield decision

    def _events(self, records: Iterator[ReadRecord]) -> Iterator[tuple[ReadRecord, str, InferenceEvent]]:
        for record in records:
            try:
                envelope = decode_event(record.value, record.headers)
            except InvalidRecordError:
                continue  # intake rejects it
            event = envelope.event
            if isinstance(event, InferenceEvent) and (event.cell, event.zone) == (self._cell, self._zone):
                yield record, envelope.id, event

    def _apply(self, decision: Decision) -> None:
        match decision.outcome:
            case EventWithoutEffect() as ignored if self._lender.awaits(decision.cause):
                _log.warning("ignored %s: %s (%s)", decision.cause, ignored.reason, sentence(ignored))
            case ReclaimEnded(owner=self._zone, status="overdue", reclaim_id=reclaim, missing=missing):
                _log.warning("overdue reclaim=%s missing=%s", reclaim, ",".join(missing))
        self._lender.on_decision(decision.outcome, decision.cause, decision.time_s or 0.0)

    def _reconfigure(self, state: ZoneState) -> None:
        if (state.cell, state.zone.id) != (self._cell, self._zone):
            return
        try:
            self._lender.reconfigure(state.zone)
        except ValueError as error:
            # The cell ignores offers meanwhile; an operator may configure the zone to lend again.
            _log.warning("%s: nothing is lent until it has", error)

    def _record(self, record: ReadRecord, event_id: str, event: InferenceEvent) -> None:
        """Record an event that was published before this process began."""
        if isinstance(event, InferenceLoadReported):
            self._lender.record_load(event, _time_s(record))
        else:
            self._on_capacity(record, event_id, event)

    def _on_event(self, record: ReadRecord, event_id: str, event: InferenceEvent) -> None:
        if not isinstance(event, InferenceLoadReported):
            self._on_capacity(record, event_id, event)
            return
        received_s = _time_s(record)
        if event.time_s > received_s + self._settings.lender_interval_s:
            _log.warning(
                "load of %.3f counts as of %.3f, when it was received: the sender's clock is ahead",
                event.time_s,
                received_s,
            )
        before = self._lender.history.last
        self._queue(self._lender.on_load(event, received_s, time.time()))
        if self._lender.history.last > before:
            self._report_interval(event.load)

    def _on_capacity(self, record: ReadRecord, event_id: str, event: InferenceEvent) -> None:
        """Record an offer or a reclaim, those of this process included."""
        match event:
            case CapacityOffered():
                self._lender.on_offer(event, event_id, _time_s(record))
            case CapacityReclaimed():
                self._lender.on_reclaim(event, event_id, _time_s(record))

    def _queue(self, events: list[InferenceEvent]) -> None:
        for event in events:
            self._unsent.append(event)
            match event:
                case CapacityOffered(offer_id=name, servers=servers):
                    _log.info("offered servers=%s offer=%s", ",".join(servers), name)
                    self._report({"offer": name, "servers": list(servers)})
                case CapacityReclaimed(reclaim_id=name, servers=count, due_s=due_s):
                    _log.info("reclaimed servers=%d due_s=%.3f reclaim=%s", count, due_s, name)
                    self._report({"reclaim": name, "servers": count, "due_s": due_s})

    def _report_interval(self, load: float) -> None:
        line: dict[str, Any] = {
            "time_s": self._lender.history.latest_s,
            "load": load,
            "forecast": self._lender.forecast[0],
            "margin": self._lender.margin_load,
            "lent": len(self._lender.lent),
        }
        if isinstance(self._forecaster, Selection):
            compared = self._forecaster.comparison
            line |= {
                "forecaster": compared.used,
                "skill": compared.skill,
                **{f"{name}_error": error for name, error in compared.errors.items()},
                "compared_intervals": compared.intervals,
            }
        _log.info("interval %s", " ".join(f"{name}={value}" for name, value in line.items()))
        self._report(line)

    def _send(self) -> None:
        """Publish the decided events under their own ids: one that the broker stored without confirming is
        sent again, and has no further effect."""
        if not self._unsent:
            return
        try:
            if self._publisher is None:
                self._publisher = EventPublisher(self._target, SOURCE)
            for event in self._unsent:
                self._publisher.publish(event, event_id_of(event))
            self._publisher.flush()
        except (PublishError, BrokerError) as error:
            _log.warning("%s; tried again", error)
            self._publisher = None
            self._stop.wait(_RETRY_S)
        else:
            self._unsent.clear()


def event_id_of(event: InferenceEvent) -> str:
    """Return the CloudEvents id of an offer or a reclaim, which is the lender's."""
    match event:
        case CapacityOffered(offer_id=name) | CapacityReclaimed(reclaim_id=name):
            return name
    raise TypeError(f"a lender does not publish {event.TYPE}")


def forecaster(settings: LenderSettings) -> Forecaster:
    """Return the forecaster of these settings; torch is loaded only for the LSTM."""
    without_training = Selection(interval_s=settings.lender_interval_s)
    if settings.lender_forecaster == "seasonal":
        return without_training
    try:
        import torch

        from infra.lender.lstm import train
    except ModuleNotFoundError as error:
        _log.warning(
            "no LSTM, as %s is not installed (extra `executors`): forecasts are the last value or seasonal",
            error.name,
        )
        return without_training
    torch.set_num_threads(1)
    return Selection(
        partial(train, seed=settings.lender_seed),
        interval_s=settings.lender_interval_s,
        retrain_s=settings.lender_retrain_s,
    )


def _time_s(record: ReadRecord) -> float:
    """Return the time at which the broker stored a record (Unix s)."""
    return math.inf if record.timestamp_ms is None else record.timestamp_ms / 1_000
