"""Publication of a zone's load, which is measured or read from a file."""

import threading
import time
from collections.abc import Callable, Iterable

from infra.lender.prometheus import LoadQueryError, MeasuredLoad
from infra.log.publisher import EventPublisher, PublishError
from infra.log.target import Target
from infra.text import first_of
from infra.workloads.elastic.loads import LoadSample
from schemas.inference import InferenceLoadReported
from streams.kafka.faults import BrokerError
from streams.kafka.reader import ReadError

SOURCE = "millrace/load"

_MOST_NAMED = 8

Notify = Callable[[str], None]


class LoadReporter:
    """Publishes loads of one zone; a load that cannot be measured or published is reported and left out."""

    def __init__(self, target: Target, cell: str, zone: str, notify: Notify) -> None:
        """Connect with the first load. `notify` gets a line about a fault, and one when it is over."""
        self._target = target
        self._cell, self._zone = cell, zone
        self._notify = notify
        self._publisher: EventPublisher | None = None
        self._fault: str | None = None
        self._silent: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        """Servers without series, first those that Prometheus does not scrape, then those that it does."""

    def measure(
        self,
        query: Callable[[], MeasuredLoad],
        every_s: float,
        stop: threading.Event,
        published: Callable[[InferenceLoadReported], None],
    ) -> None:
        """Query and publish loads until `stop` is set; a load that cannot be measured is left out.

        Args:
            published: Gets each event that the broker has confirmed.
        """
        due_s = time.monotonic()
        while not stop.wait(max(due_s - time.monotonic(), 0.0)):
            due_s = max(due_s + every_s, time.monotonic())
            try:
                found = query()
                event = self._event(found.time_s, found.load, found.serving)
                self._publish(event)
            except (LoadQueryError, PublishError, BrokerError, ReadError) as error:
                self._fail(str(error))
                continue
            if self._fault is not None:
                self._notify("loads are reported again")
                self._fault = None
            self._report_silent(found)
            published(event)

    def replay(
        self,
        samples: Iterable[LoadSample],
        pace: float,
        stop: threading.Event,
        published: Callable[[InferenceLoadReported], None],
    ) -> None:
        """Publish loads at their times, as if they were measured then; the first one at once.

        Args:
            pace: Seconds of the samples per second.
            published: Gets each event that the broker has confirmed.

        Raises:
            PublishError: the broker does not confirm an event.
        """
        begin_s: float | None = None
        start_s = time.time()
        for sample in samples:
            begin_s = sample.offset_s if begin_s is None else begin_s
            if stop.wait(max(start_s + (sample.offset_s - begin_s) / pace - time.time(), 0.0)):
                return
            event = self._event(time.time(), sample.load, ())
            self._publish(event)
            published(event)

    def _event(self, time_s: float, load: float, serving: tuple[str, ...]) -> InferenceLoadReported:
        return InferenceLoadReported(
            cell=self._cell, zone=self._zone, time_s=time_s, load=load, serving=serving
        )

    def _publish(self, event: InferenceLoadReported) -> None:
        publisher = self._publisher or EventPublisher(self._target, SOURCE)
        self._publisher = None  # one that has failed stays failed
        publisher.publish(event)
        publisher.flush()
        self._publisher = publisher

    def _fail(self, fault: str) -> None:
        """Report a fault once, even if it repeats."""
        if fault != self._fault:
            self._notify(f"{fault}; tried again")
            self._fault = fault

    def _report_silent(self, found: MeasuredLoad) -> None:
        """Report the servers without series that count as busy, whenever they change."""
        lost = tuple(server for server in found.silent if server not in found.silent_but_scraped)
        silent = lost, found.silent_but_scraped
        if silent == self._silent:
            return
        self._silent = silent
        if not found.silent:
            self._notify("all servers have series again")
        if lost:
            self._notify(
                f"servers without series count as busy ({len(lost)}): {first_of(lost, _MOST_NAMED)}: none of "
                "their targets is up"
            )
        if found.silent_but_scraped:
            self._notify(
                f"servers without series count as busy ({len(found.silent_but_scraped)}): "
                f"{first_of(found.silent_but_scraped, _MOST_NAMED)}: Prometheus scrapes them, so the "
                "metric is renamed there, or its exporter alone is down"
            )
