"""The runner `moe` on a node: mixture-of-experts jobs whose ranks begin and end by the cell's commands.

All ranks of a generation begin and end together. What they do between is their job kind's: see
`executors.moe.ranks.kinds`.
"""

from pydantic import JsonValue

from executors.gang.jobs import Jobs
from executors.gang.messages import Verdict
from executors.gang.node import GangNode
from executors.moe.ranks.job import JobOnNode, members_of
from executors.moe.ranks.kinds import RANK_WORK
from executors.moe.ranks.messages import Placed
from executors.moe.settings import MoeSettings
from executors.node.runner import Activity, CloseReason, Objection, RunnerContext
from schemas.commands import Command
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased, RanksReleaseReason

_VERDICTS: dict[RanksReleaseReason, Verdict] = {
    "withdrawn": "discard",
    "failed": "discard",
    "node_lost": "stop",
    "preempted": "stop",
    "ended": "stop",
}


class MoeRunner:
    """See `Runner`."""

    def __init__(self, context: RunnerContext, settings: MoeSettings, gpus: int) -> None:
        """Have no rank yet, and room for as many as there are GPUs."""
        self._place = GangNode.of(context, settings, gpus, "rank")
        self._jobs = Jobs(context, self._place, JobOnNode)

    def judge(self, command: Command) -> Objection | None:
        """An assignment must be newer than what the node has of the job, of a kind that ranks are known for,
        and fit onto its GPUs; commands on a generation must be for one that the node has."""
        if isinstance(command, RanksAssigned):
            return self._impossible(command) or self._jobs.objection(command)
        if isinstance(command, RanksReleased | ExpertsPlaced):
            return self._jobs.objection_of_generation(command.job_id, command.generation)
        return None

    def apply(self, command: Command) -> None:
        """Tell the job's ranks; what comes of it is for `advance`."""
        if isinstance(command, RanksAssigned):
            self._assign(command)
        elif isinstance(command, ExpertsPlaced):
            self._place_experts(command)
        elif isinstance(command, RanksReleased):
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

    def _impossible(self, command: RanksAssigned) -> Objection | None:
        members, workload = members_of(command), command.workload
        objection = members.objection(command.node, self._place.gpus, self._place.called)
        if objection is not None:
            return objection
        if workload.kind not in RANK_WORK:
            known = ", ".join(sorted(RANK_WORK))
            return Objection(
                "impossible", f"no ranks for jobs of kind {workload.kind} here: there are {known}"
            )
        if members.world != workload.ranks:
            return Objection(
                "impossible", f"the members have {members.world} ranks, the job {workload.ranks}"
            )
        return None

    def _assign(self, command: RanksAssigned) -> None:
        job = self._jobs.present.get(command.job_id)
        if self._jobs.has(command):
            return  # the same order once more
        if job is None:
            self._jobs.begin(command)
        else:
            # Whatever still runs of it has no part in what follows.
            job.processes.kill(job.processes.verdict or "stop")
            self._jobs.following[command.job_id] = command

    def _place_experts(self, command: ExpertsPlaced) -> None:
        following = self._jobs.following.get(command.job_id)
        if following is not None and command.generation == following.generation:
            layers = {layer.layer: layer for layer in (*following.placement, *command.layers)}
            self._jobs.following[command.job_id] = following.model_copy(
                update={"revision": command.revision, "placement": tuple(layers.values())}
            )
            return
        job = self._jobs.present.get(command.job_id)
        if job is not None and command.generation == job.command.generation:
            job.processes.tell(Placed(revision=command.revision, layers=command.layers))

    def _release(self, command: RanksReleased) -> None:
        verdict = _VERDICTS[command.reason]
        processes = self._jobs.ending(command.job_id, command.generation, verdict)
        if processes is None:
            return
        if command.reason == "node_lost":
            processes.kill(verdict)
        else:
            processes.release(verdict, by_s=None)
