"""A run in the node's journal, whose ranks end with the node's process."""

from typing import Literal

from executors.gang.messages import Verdict
from executors.node.run_reports import RunReports
from schemas.base import Identifier, Record, RunId, Samples


class RunState(Record):
    """State of a run in the journal.

    Attributes:
        verdict: its ordered end; `none` if it was to continue.
    """

    job_id: Identifier
    run_id: RunId
    samples_done: Samples
    verdict: Verdict | Literal["none"]

    def report_end(self, reports: RunReports) -> None:
        """Report its end in the next process of the node."""
        if self.verdict == "none":
            error = "the node was started again, and its ranks ended with the process before"
            reports.failed(self.samples_done, error, permanent=False)
        else:
            reports.over(self.samples_done, self.verdict)
