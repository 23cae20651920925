"""The service of a labour vendor: reads orders from the log, prepares the data, and delivers."""

import logging
import threading
import time
from collections.abc import Iterable

from infra.errors import CommandError
from infra.log.publisher import EventPublisher, PublishError
from infra.log.reader import LogReader, decisions_in
from infra.log.target import ANSWER_TIMEOUT_S, Target
from infra.vendor.preparation import Counts, Preparation, StoppedError, UnfitDataError
from infra.views.sentences import sentence
from schemas.access import use_of_topics
from schemas.auction.bids import QuoteAccepted, VendorLeft, VendorQuoted
from schemas.auction.deliveries import (
    FailureReason,
    PreprocessingAccepted,
    PreprocessingClosed,
    PreprocessingDelivered,
    PreprocessingFailed,
    PreprocessingOrdered,
    PreprocessingReport,
    delivery_path,
)
from schemas.base import MAX_TEXT_LENGTH, Event
from schemas.codec import Decision, InvalidRecordError
from schemas.decisions import EventIgnored
from schemas.topics import DECISIONS
from streams.kafka.administration import Administration
from streams.kafka.faults import BrokerError
from streams.kafka.reader import ReadError
from streams.kafka.records import ReadRecord

SOURCE = "millrace/vendor"
_POLL_S = 0.2
_RETRY_S = 1.0
"""Delay between two attempts to reach a broker, or to write a file."""
_UNABLE_AFTER = 3
"""Attempts to prepare an order after which the vendor reports that it is unable to."""
_FOLLOWED = (PreprocessingOrdered, PreprocessingAccepted, PreprocessingClosed, QuoteAccepted, EventIgnored)

_log = logging.getLogger(__name__)


class VendorService:
    """Runs one vendor of one cell.

    Its open orders come from the decisions, and a prepared file is delivered as it is. So a new process goes
    on where the one before it ended, and an order that is prepared twice is delivered with the same digest
    under the same event id.
    """

    def __init__(
        self,
        target: Target,
        quote: VendorQuoted,
        preparation: Preparation,
        history_s: float,
        stop: threading.Event,
    ) -> None:
        """Position the reader of the log.

        Args:
            quote: the vendor's standing quote, with its name and cell.
            history_s: age of the oldest orders that are read (s).
            stop: ends the service.

        Raises:
            BrokerError: the broker does not answer, or a topic or a permission is missing.
            ReadError: the log cannot be read.
        """
        Administration(target.kafka, ANSWER_TIMEOUT_S).require(use_of_topics("vendors", target.prefix))
        self._target, self._quote, self._preparation, self._stop = target, quote, preparation, stop
        self._reader = LogReader(target, [target.topic(DECISIONS)], time.time() - history_s)
        self._publisher: EventPublisher | None = None
        self._applied = (-1, -1)
        """Place of the latest decision that was applied."""
        self._open: dict[str, PreprocessingOrdered] = {}
        """Orders without an answer, by id."""
        self._attempts: dict[str, int] = {}
        """Failed attempts to prepare an order."""
        self._quote_id: str | None = None
        """Event id of the quote; None if none was published, or it has ended since."""

    def serve(self) -> None:
        """Catch up with the log, quote, and prepare orders until stopped; then withdraw the quote.

        Raises:
            ReadError: the log cannot be read at the start.
            CommandError: the cell has ignored the quote.
        """
        with self._reader as reader:
            self._fold(reader.to_end(is_stopped=self._stop.is_set))
            while not self._stop.is_set():
                try:
                    self._fold(reader.poll(0.0 if self._open else _POLL_S))
                    self._work()
                except (ReadError, PublishError, BrokerError) as error:
                    _log.warning("%s; tried again", error)
                    self._publisher = None
                    self._stop.wait(_RETRY_S)
            if self._quote_id is not None:
                self._leave()

    def _work(self) -> None:
        """Publish the quote if it is due, or prepare an order."""
        if self._quote_id is None:
            # Late orders come first: a quote brings more of them.
            for order in list(self._open.values()):
                if self._stop.is_set():
                    return
                self._carry_out(order)
            self._quote_id = self._send(self._quote)
            _log.info("quoting vendor=%s cell=%s", self._quote.vendor, self._quote.cell)
        elif self._open:
            self._carry_out(next(iter(self._open.values())))

    def _fold(self, records: Iterable[ReadRecord]) -> None:
        for decision in decisions_in(records, *_FOLLOWED):
            try:
                is_new = decision.cell == self._quote.cell and decision.place > self._applied
            except InvalidRecordError:
                continue  # replay reports it
            if is_new:
                self._applied = decision.place
                self._apply(decision)

    def _apply(self, decision: Decision) -> None:
        outcome = decision.outcome
        if isinstance(outcome, EventIgnored) and decision.cause == self._quote_id:
            raise CommandError(f"cell {decision.cell}: quote ignored ({outcome.reason}): {sentence(outcome)}")
        if getattr(outcome, "vendor", None) != self._quote.vendor:
            return
        match outcome:
            case PreprocessingOrdered():
                self._open[outcome.order_id] = outcome
            case PreprocessingAccepted():
                self._open.pop(outcome.order_id, None)
                _log.info("paid order=%s micros=%d", outcome.order_id, outcome.paid_micros)
            case PreprocessingClosed():
                self._open.pop(outcome.order_id, None)
                _log.warning("closed order=%s reason=%s", outcome.order_id, outcome.reason)
            case QuoteAccepted(reason="late"):
                self._quote_id = None

    def _carry_out(self, order: PreprocessingOrdered) -> None:
        """Prepare the data of an order, and report the result. A failure of a disk is tried again."""
        try:
            report, counts = self._prepared(order)
        except StoppedError:
            return
        except OSError as error:
            attempts = self._attempts[order.order_id] = self._attempts.get(order.order_id, 0) + 1
            _log.warning("order=%s attempt=%d: %s", order.order_id, attempts, error)
            if attempts < _UNABLE_AFTER:
                self._stop.wait(_RETRY_S)
                return
            report, counts = self._failed(order, "vendor_unable", str(error)), None
        self._send(report, f"{order.order_id}-{report.TYPE.split('.')[2]}")
        self._open.pop(order.order_id, None)
        self._attempts.pop(order.order_id, None)
        result = report.reason if isinstance(report, PreprocessingFailed) else "delivered"
        _log.info("order=%s result=%s %s", order.order_id, result, "" if counts is None else counts)

    def _prepared(self, order: PreprocessingOrdered) -> tuple[PreprocessingReport, Counts | None]:
        path = delivery_path(self._quote.cell, order.vendor, order.order_id)
        try:
            delivery, counts = self._preparation.prepare(order.dataset, order.least_samples, path)
        except UnfitDataError as error:
            return self._failed(order, error.reason, str(error)), None
        report = PreprocessingDelivered(
            cell=self._quote.cell,
            vendor=order.vendor,
            order_id=order.order_id,
            job_id=order.job_id,
            delivery=delivery,
        )
        return report, counts

    def _failed(self, order: PreprocessingOrdered, reason: FailureReason, detail: str) -> PreprocessingFailed:
        return PreprocessingFailed(
            cell=self._quote.cell,
            vendor=order.vendor,
            order_id=order.order_id,
            job_id=order.job_id,
            reason=reason,
            detail=detail[:MAX_TEXT_LENGTH],
        )

    def _send(self, event: Event, event_id: str | None = None) -> str:
        """Publish an event, wait until the broker has stored it, and return its id.

        Raises:
            PublishError: it has not.
            BrokerError: the broker does not answer.
        """
        if self._publisher is None:
            self._publisher = EventPublisher(self._target, SOURCE)
        envelope = self._publisher.publish(event, event_id)
        self._publisher.flush()
        return envelope.id

    def _leave(self) -> None:
        """Withdraw the quote until the next start."""
        try:
            self._send(VendorLeft(cell=self._quote.cell, vendor=self._quote.vendor))
        except (PublishError, BrokerError) as error:
            _log.warning("the quote stands: %s", error)
        else:
            _log.info("quote withdrawn vendor=%s cell=%s", self._quote.vendor, self._quote.cell)
