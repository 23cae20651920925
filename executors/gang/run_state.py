"""What a node's journal has of its runs, none of which outlives the node's process."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from executors.gang.messages import Verdict
from schemas.base import Identifier, RunId, Samples
from schemas.fleet import RunFailed, RunProgressed


class RunState(BaseModel):
    """Of one run.

    Attributes:
        verdict: what was said about its end, if that was to come.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job_id: Identifier
    run_id: RunId
    samples_done: Samples
    verdict: Verdict | Literal["none"]

    def end(self, cell: str, node: str, called: str) -> RunFailed | RunProgressed:
        """What the next process of the node reports of it.

        Args:
            called: what a process of a run is called.
        """
        about: dict[str, Any] = {
            "cell": cell,
            "node": node,
            "run_id": self.run_id,
            "job_id": self.job_id,
            "samples_done": self.samples_done,
        }
        if self.verdict == "none":
            error = f"the node was started again, and its {called}s ended with the process before"
            return RunFailed(**about, error=error, permanent=False)
        return RunProgressed(**about, node_s=0.0, complete=True)
