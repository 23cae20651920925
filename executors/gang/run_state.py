"""Runs in a node's journal. All end with the node's process."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from executors.gang.messages import Verdict
from schemas.base import Identifier, RunId, Samples
from schemas.fleet import RunFailed, RunProgressed


class RunState(BaseModel):
    """One run.

    Attributes:
        verdict: its ordered end; `none` if it was to continue.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job_id: Identifier
    run_id: RunId
    samples_done: Samples
    verdict: Verdict | Literal["none"]

    def end(self, cell: str, node: str) -> RunFailed | RunProgressed:
        """Return the report of its end, for the next process of the node."""
        fields: dict[str, Any] = {
            "cell": cell,
            "node": node,
            "run_id": self.run_id,
            "job_id": self.job_id,
            "samples_done": self.samples_done,
        }
        if self.verdict == "none":
            error = "the node was started again, and its ranks ended with the process before"
            return RunFailed(**fields, error=error, permanent=False)
        return RunProgressed(**fields, node_s=0.0, complete=True)
