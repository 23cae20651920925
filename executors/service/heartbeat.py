"""The node's heartbeat, from a thread of its own: steps, checkpoints and loading a model may be long."""

import logging
import threading
from types import TracebackType
from typing import Self

from executors.service.reports import FleetReports, ReportError
from schemas.fleet import NodeHeartbeat

_log = logging.getLogger(__name__)


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
                # Whoever looks after the reports hears of it too, and ends the process.
                _log.error("heartbeat stopped error=%s", error)
                return
