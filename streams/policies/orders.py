"""Time that a cell waits for reports of its orders.

A node reports when it begins a run, how far the run is, and when it has ended. Where no report comes for too
long, the command or a report is lost, or the node does not have the run: then the run counts as failed.
"""

from typing import Any

from schemas.facts import Facts
from schemas.fleet import RunFailed
from streams.cell.jobs import Job

MOST_FAILURES = 3
"""A job whose runs fail so often, and it was never further than before, is given up."""

_LEAST_TICKS = 10
"""No run is given up before its zone has seen so many ticks: the clock of a cell that was down jumps, and the
reports of that time come only then."""
_TIMES_EXPECTED = 10.0
"""A run whose node has never said how far it is may take so many times as long as it is expected to."""
_FIRST_DELAY_S = 5.0
"""After the first failure without a report; doubled with each further one."""


class OrderClock:
    """Time in which a zone could receive reports. It goes with the cell's clock, but with each tick
    by no more than a tenth of the time for which a silent run is believed in."""

    def __init__(self, cell: str, timeout_s: float) -> None:
        """Begin at 0.

        Args:
            cell: its name, for the reports that stand in for those that do not come.
            timeout_s: for so long a silent run is believed in; see the policies' `order_timeout_s`.
        """
        self._cell = cell
        self.timeout_s = timeout_s
        self.elapsed_s = 0.0
        self._time_s: float | None = None
        self._checked_s = 0.0

    def advance(self, time_s: float) -> bool:
        """It is `time_s` now by the cell's clock.

        Returns:
            whether it is time to look for silent runs, which is so for some ten times in the timeout.
        """
        step_s = self.timeout_s / _LEAST_TICKS
        if self._time_s is not None:
            self.elapsed_s += min(max(time_s - self._time_s, 0.0), step_s)
        self._time_s = time_s
        if self.elapsed_s - self._checked_s < step_s:
            return False
        self._checked_s = self.elapsed_s
        return True

    def is_lost(self, heard_s: float, quiet_s: float = 0.0) -> bool:
        """Whether a run is not believed in any longer.

        Args:
            heard_s: time of the last order or report of it, by this clock.
            quiet_s: for so long it was then expected to say nothing.
        """
        return self.elapsed_s - heard_s > self.timeout_s + _TIMES_EXPECTED * quiet_s

    def failure(self, job: Job, run_id: str, node: str, heard_s: float) -> "SilentRun":
        """Return the event that replaces the report of such a run."""
        return SilentRun(
            cell=self._cell,
            node=node,
            run_id=run_id,
            job_id=job.job_id,
            samples_done=job.samples_done,
            error="",
            permanent=False,
            silent_s=self.elapsed_s - heard_s,
        )

    def state(self) -> list[Any]:
        """Return the state, of types that msgpack writes."""
        return [self.elapsed_s, self._time_s, self._checked_s]

    def restore(self, state: list[Any]) -> None:
        """Take a state."""
        self.elapsed_s, self._time_s, self._checked_s = state


class SilentRun(RunFailed):
    """A run that counts as failed since nothing is heard of it. No node reports it, and no log has it."""

    silent_s: float


def facts_of_failure(report: RunFailed) -> Facts:
    """Return the facts of a run's failure, for `run_failed`."""
    if isinstance(report, SilentRun):
        return {
            "case": "silent",
            "node": report.node,
            "run_id": report.run_id,
            "silent_s": report.silent_s,
        }
    return {"node": report.node, "error": report.error}


def retry_delay_s(failures: int) -> float:
    """For how long a job waits whose run a node did not begin, or has not reported of.

    Args:
        failures: how often that was so by now, at least 1.
    """
    return _FIRST_DELAY_S * 2.0 ** min(failures - 1, MOST_FAILURES)
