"""The runner `elastic` on a node: data-parallel jobs whose workers come and go, by the cell's commands.

The thesis embeds a controller in each elastic job, which coordinates the joining and leaving of workers
(section 3.6). Here it is the job's leading worker process, see `executors.elastic.worker`; the runner starts
and ends the node's processes and tells them what the cell has decided.
"""

from pydantic import JsonValue

from executors.elastic.job import JobOnNode, members_of
from executors.elastic.settings import ElasticSettings
from executors.gang.jobs import Jobs
from executors.gang.messages import Verdict
from executors.gang.node import GangNode
from executors.node.runner import Activity, CloseReason, Objection, RunnerContext
from schemas.commands import Command
from schemas.elastic.commands import ReleaseReason, WorkersAssigned, WorkersReleased

_VERDICTS: dict[ReleaseReason, Verdict] = {
    "scaled_in": "leave",
    "preempted": "stop",
    "withdrawn": "discard",
    "failed": "discard",
    "node_lost": "stop",
}


class ElasticRunner:
    """See `Runner`."""

    def __init__(self, context: RunnerContext, settings: ElasticSettings, gpus: int) -> None:
        """Have no worker yet, and room for as many worker processes as there are GPUs."""
        self._place = GangNode.of(context, settings, gpus, "worker")
        self._jobs = Jobs(context, self._place, JobOnNode)

    def judge(self, command: Command) -> Objection | None:
        """An assignment must be newer than what the node has of the job, and fit onto its GPUs; a release
        must not be of a generation that is over."""
        if isinstance(command, WorkersAssigned):
            objection = members_of(command).objection(command.node, self._place.gpus, self._place.called)
            return objection or self._jobs.objection(command)
        if isinstance(command, WorkersReleased):
            return self._jobs.objection_of_generation(command.job_id, command.generation)
        return None

    def apply(self, command: Command) -> None:
        """Tell the job's workers; what comes of it is for `advance`."""
        if isinstance(command, WorkersAssigned):
            self._assign(command)
        elif isinstance(command, WorkersReleased):
            self._release(command)

    def disown(self, run_id: str, job_id: str) -> None:
        """See `Jobs`."""
        self._jobs.disown(run_id, job_id)

    def held_runs(self) -> list[str]:
        """See `Jobs`."""
        return self._jobs.held_runs()

    def advance(self) -> Activity:
        """See `Jobs`."""
        return self._jobs.advance()

    def close(self, reason: CloseReason) -> None:
        """See `Jobs`."""
        self._jobs.close(reason)

    def state(self) -> JsonValue:
        """See `Jobs`."""
        return self._jobs.state()

    def restore(self, state: JsonValue) -> None:
        """See `Jobs`."""
        self._jobs.restore(state)

    def _assign(self, command: WorkersAssigned) -> None:
        job = self._jobs.present.get(command.job_id)
        if self._jobs.has(command):
            return  # the same order once more
        if job is None:
            self._jobs.begin(command)
        elif command.resumes:
            # Whatever still runs of it has no part in what follows.
            job.processes.kill(job.processes.verdict or "stop")
            self._jobs.following[command.job_id] = command
        elif job.is_ending:
            by_s = self._place.clock.time_s() + self._place.settings.stop_grace_s
            job.processes.release(job.processes.verdict or "stop", by_s)
            self._jobs.following[command.job_id] = command
        else:
            job.assign(command)

    def _release(self, command: WorkersReleased) -> None:
        verdict = _VERDICTS[command.reason]
        processes = self._jobs.ending(command.job_id, command.generation, verdict)
        if processes is None:
            return
        if command.reason == "node_lost":
            processes.kill(verdict)
        else:
            processes.release(verdict, command.by_s)
