"""The node's `fleet` events, none lost and none duplicated by a retry; and its heartbeats."""

import logging
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from executors.node.runner import Clock
from executors.node.settings import ExecutorSettings
from schemas.codec import Envelope
from schemas.fleet import FleetEvent, NodeHeartbeat
from schemas.topics import FLEET, topic_name
from streams.kafka.configuration import producer
from streams.kafka.faults import fatal_errors_told

_log = logging.getLogger(__name__)


class ReportError(RuntimeError):
    """A report did not reach the broker. What caused it is not committed, so a restart repeats it."""


class FleetReports:
    """Sends events with ids `<node>-<boot>-<sequence>`. May be used from several threads."""

    def __init__(self, settings: ExecutorSettings, boot: int, clock: Clock) -> None:
        """Connect lazily; `boot` must differ from that of every earlier start of the node."""
        self._producer = Producer(
            producer(
                settings,
                f"millrace-executor-{settings.node}",
                delivery_timeout_s=settings.delivery_timeout_s,
                linger_ms=5,
            ),
            logger=_log,
        )
        self._topic = topic_name(settings.topic_prefix, FLEET)
        self._key = settings.cell.encode()
        self._source = f"executor/{settings.node}"
        self._id_prefix = f"{settings.node}-{boot}"
        self._delivery_timeout_s = settings.delivery_timeout_s
        self._clock = clock
        self._sequence = 0
        self._lock = threading.Lock()
        self._failure: str | None = None

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
                self._producer.produce(
                    self._topic,
                    envelope.value,
                    self._key,
                    headers=[*envelope.headers()],
                    on_delivery=self._on_delivery,
                )
            except BufferError as error:
                self._failure = self._failure or f"{self._topic}: {error}"
        self.check()

    def check(self) -> None:
        """Take note of what the broker has confirmed.

        Raises:
            ReportError: a report is lost.
            KafkaException: the broker refuses this producer altogether.
        """
        with fatal_errors_told():
            self._producer.poll(0)
        if self._failure:
            raise ReportError(self._failure)

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when the broker has confirmed every report.

        Raises:
            ReportError: one is lost, or not confirmed in time.
        """
        wait_s = self._delivery_timeout_s if timeout_s is None else timeout_s
        with fatal_errors_told():
            self._producer.flush(wait_s)
        self.check()
        # `flush` also counts the client's errors, which `check` has served.
        unconfirmed = len(self._producer)
        if unconfirmed:
            raise ReportError(f"{self._topic}: {unconfirmed} reports are not confirmed within {wait_s:g} s")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or f"{message.topic()}: {error.str()}"
            _log.error("report lost topic=%s error=%s", message.topic(), error.str())


class Heartbeat:
    """Beats for the length of the block. None comes after it: it would bring the node up again."""

    def __init__(self, reports: FleetReports, beat: NodeHeartbeat, interval_s: float) -> None:
        self._reports = reports
        self._beat = beat
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._reports.send(self._beat)
            except ReportError as error:
                # The process that owns the reports is told too, and ends.
                _log.error("heartbeat stopped error=%s", error)
                return
