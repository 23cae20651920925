"""Time that a cell waits for reports of its orders.

A node reports the start, the progress and the end of a run. If reports stay away for too long, the command or
a report is lost, or the node does not have the run: then the run counts as failed.
"""

from dataclasses import dataclass

from schemas.facts import Facts
from schemas.fleet import RefusalReason, RunFailed
from streams.cell.jobs import Job
from streams.cell.states import Stateful

MOST_FAILURES = 3
"""Failures after which a job is given up, counted since it last exceeded its furthest progress."""

_LEAST_TICKS = 10
"""Ticks that a zone must see before it gives up a run: the clock of a cell that was down jumps, and the
reports of that time come only then."""
_TIMES_EXPECTED = 10.0
"""Factor on the expected duration of a run's silence."""
_FIRST_DELAY_S = 5.0
"""Delay after the first failure without a report; doubled with each further one."""


@dataclass(init=False, eq=False)
class OrderClock(Stateful):
    """Time in which a zone could receive reports. It follows the cell's clock, but each tick adds at most a
    tenth of the timeout of silent runs."""

    elapsed_s: float
    _time_s: float | None
    _checked_s: float

    def __init__(self, cell: str, timeout_s: float) -> None:
        """Begin at 0.

        Args:
            cell: its name, for the reports that replace missing ones.
            timeout_s: silence after which a run counts as lost; see the policies' `order_timeout_s`.
        """
        self._cell = cell
        self.timeout_s = timeout_s
        self.elapsed_s, self._time_s, self._checked_s = 0.0, None, 0.0

    def advance(self, time_s: float) -> bool:
        """Set the time of the cell's clock.

        Returns:
            whether to check for silent runs now, which is some ten times per timeout.
        """
        step_s = self.timeout_s / _LEAST_TICKS
        if self._time_s is not None:
            self.elapsed_s += min(max(time_s - self._time_s, 0.0), step_s)
        self._time_s = time_s
        if self.elapsed_s - self._checked_s < step_s:
            return False
        self._checked_s = self.elapsed_s
        return True

    def is_lost(self, last_seen_s: float, quiet_s: float = 0.0) -> bool:
        """Return whether a run has been silent for too long.

        Args:
            last_seen_s: time of the last order or report of it, by this clock.
            quiet_s: expected duration of its silence from then on.
        """
        return self.elapsed_s - last_seen_s > self.timeout_s + _TIMES_EXPECTED * quiet_s

    def failure(self, job: Job, run_id: str, node: str, last_seen_s: float) -> "SilentRun":
        """Return the event that replaces the report of a silent run."""
        return SilentRun(
            cell=self._cell,
            node=node,
            run_id=run_id,
            job_id=job.job_id,
            samples_done=job.samples_done,
            error="",
            permanent=False,
            silent_s=self.elapsed_s - last_seen_s,
        )


class SilentRun(RunFailed):
    """A run that counts as failed because it is silent. No node reports it, and no log has it."""

    silent_s: float


class UnbegunRun(RunFailed):
    """A run that counts as failed because its node has refused to begin it. The log has the refusal alone."""

    refusal: RefusalReason


def facts_of_failure(report: RunFailed) -> Facts:
    """Return the facts of a run's failure, for `run_failed`. Its node and id name the report with the
    error."""
    run: Facts = {"node": report.node, "run_id": report.run_id}
    match report:
        case SilentRun():
            return {"case": "silent", **run, "silent_s": report.silent_s}
        case UnbegunRun():
            return {"case": "refused", **run, "refusal": report.refusal}
    return run


def retry_delay_s(failures: int) -> float:
    """Return the delay before the next run of a job, after runs that no node began or reported.

    Args:
        failures: their number, at least 1.
    """
    return _FIRST_DELAY_S * 2.0 ** min(failures - 1, MOST_FAILURES)
