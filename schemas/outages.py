"""One line in the log of a process for each outage of Kafka, by the log texts of both Kafka clients."""

import logging
import re
import threading
import time
from collections.abc import Callable

QUIET_S = 75.0
"""Time without a logged failure after which an outage is over.

It is longer than the longest pause between two log lines of one outage. A broker that refuses connections
fails an attempt every second, but librdkafka logs an identical error only every 30 s. A broker that accepts
connections and does not answer, such as a stopped process, fails a request only after librdkafka's
`socket.timeout.ms`, 60 s."""
_LOOK_EVERY_S = 1.0

_LIBRDKAFKA = frozenset({"FAIL", "ERROR", "SESSTMOUT", "HBFAIL", "COORD", "REQTMOUT", "GETPID"})
"""Facilities of librdkafka (the first argument of its log records) that report failed connections or
requests."""
_AIOKAFKA = re.compile(
    r"Unable (to )?connect|Unable to update metadata|Unable to request metadata|NodeNotReadyError|"
    r"KafkaConnectionError|KafkaTimeoutError|RequestTimedOutError|CoordinatorNotAvailable|"
    r"NotCoordinatorFor|StaleMetadata|oordinator dead|Heartbeat (failed|session expired|send request)|"
    r"Group Coordinator Request failed|OffsetCommit failed|Failed fetch (messages|offsets)|"
    r"(NotLeaderForPartition|LeaderNotAvailable)Error"
)


class OutageFilter(logging.Filter):
    """Passes the first line of an outage of Kafka, drops the others, and logs its end. Others pass unchanged.

    The Kafka clients log every attempt to connect, tens of lines a second and process while a broker is down.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._logger = logging.getLogger(__name__)
        self._first_s: float | None = None
        """Time of the first logged failure; None without an outage. The outage itself began up to a request's
        timeout earlier."""
        self._last_s = 0.0
        self._left_out = 0
        self._level = logging.WARNING

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record; mark one that begins an outage."""
        if not _is_about_connection(record):
            return True
        with self._lock:
            if self._first_s is None:
                if record.levelno < logging.WARNING:
                    return True  # such as a connection that was idle for a long time
                self._first_s = self._last_s = self._monotonic_s()
                self._left_out, self._level = 0, record.levelno
                record.msg = f"Kafka is lost, further lines about it are left out: {record.getMessage()}"
                record.args = ()
                threading.Thread(target=self._watch, name="outage", daemon=True).start()
                return True
            self._last_s = self._monotonic_s()
            self._left_out += 1
            return False

    def conclude(self) -> bool:
        """Log the end of the outage if it is over. Return whether there is no outage."""
        with self._lock:
            first_s, left_out = self._first_s, self._left_out
            if first_s is not None and self._monotonic_s() - self._last_s < QUIET_S:
                return False
            self._first_s = None
        if first_s is not None:
            self._logger.log(
                self._level,
                "Kafka is back: no failure for %.0f s; from the first to the last were %.0f s, "
                "%d lines left out",
                QUIET_S,
                self._last_s - first_s,
                left_out,
            )
        return True

    def _watch(self) -> None:
        while not self.conclude():
            time.sleep(_LOOK_EVERY_S)


def _is_about_connection(record: logging.LogRecord) -> bool:
    if record.name.partition(".")[0] == "aiokafka":
        return record.levelno >= logging.WARNING and _AIOKAFKA.search(record.getMessage()) is not None
    return (
        record.msg == "%s [%s] %s"
        and isinstance(record.args, tuple)
        and record.args[:1] != ()
        and record.args[0] in _LIBRDKAFKA
    )
