"""Heartbeats and other `fleet` events of a node. No event is lost, and none is duplicated by a retry."""

import logging
import threading
from datetime import UTC, datetime
from typing import Self

from executors.node.runner import Clock
from executors.node.settings import ExecutorSettings
from schemas.codec import Envelope
from schemas.fleet import FleetEvent, NodeHeartbeat
from schemas.topics import FLEET, topic_name
from streams.kafka.producer import ConfirmedProducer
from streams.kafka.records import SentRecord

_log = logging.getLogger(__name__)


class ReportError(RuntimeError):
    """A report did not reach the broker. The command that caused it is not committed, so a restart repeats
    the report."""


class FleetReports:
    """Sends events with ids `<node>-<boot>-<sequence>`. May be used from several threads."""

    def __init__(self, settings: ExecutorSettings, boot: int, clock: Clock) -> None:
        """Connect lazily; `boot` must differ from that of every earlier start of the node."""
        client_id = f"millrace-executor-{settings.node}"
        self._producer = ConfirmedProducer(settings, client_id, settings.delivery_timeout_s, _log)
        self._topic = topic_name(settings.topic_prefix, FLEET)
        self._key = settings.cell.encode()
        self._source = f"executor/{settings.node}"
        self._id_prefix = f"{settings.node}-{boot}"
        self._delivery_timeout_s = settings.delivery_timeout_s
        self._clock = clock
        self._sequence = 0
        self._lock = threading.Lock()
        self._overflow: str | None = None

    def send(self, event: FleetEvent) -> None:
        """Queue a report; the order of reports is kept.

        Raises:
            ReportError: this one or an earlier one is lost.
        """
        time = datetime.fromtimestamp(self._clock.time_s(), UTC).isoformat(timespec="milliseconds")
        with self._lock:
            self._sequence += 1
            envelope = Envelope(f"{self._id_prefix}-{self._sequence}", self._source, time, event)
            try:
                self._producer.send(SentRecord(self._topic, self._key, envelope.value, envelope.headers()))
            except BufferError as error:
                self._overflow = self._overflow or f"{self._topic}: {error}"
        self.check()

    def check(self) -> None:
        """Process the broker's confirmations.

        Raises:
            ReportError: a report is lost.
            KafkaException: the broker rejects this producer.
        """
        self._producer.serve()
        if self._overflow:
            raise ReportError(self._overflow)
        if self._producer.fault is not None:
            topic, error = self._producer.fault
            raise ReportError(f"{topic}: {error.str()}")

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the broker has confirmed every report.

        Raises:
            ReportError: a report is lost, or not confirmed in time.
        """
        wait_s = self._delivery_timeout_s if timeout_s is None else timeout_s
        unconfirmed = self._producer.flush(wait_s)
        self.check()
        if unconfirmed:
            raise ReportError(f"{self._topic}: {unconfirmed} reports are not confirmed within {wait_s:g} s")


class Heartbeat:
    """Send heartbeats within the block. No heartbeat is sent afterwards, since it would bring the node online
    again."""

    def __init__(self, reports: FleetReports, beat: NodeHeartbeat, interval_s: float) -> None:
        self._reports = reports
        self._beat = beat
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._reports.send(self._beat)
            except ReportError as error:
                # The process that owns the reports raises the error too, and ends.
                _log.error("heartbeat stopped error=%s", error)
                return
