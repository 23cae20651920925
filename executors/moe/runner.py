"""The runner `moe` on a node: mixture-of-experts jobs whose ranks begin and end by the cell's commands.

All ranks of a generation begin and end together. What they do between is their job kind's: see
`executors.moe.ranks.kinds`.
"""

import json
import logging
import shutil
import time

from pydantic import JsonValue, TypeAdapter

from executors.moe.ranks.job import JobOnNode, Workplace, local_ranks
from executors.moe.ranks.kinds import RANK_WORK
from executors.moe.ranks.messages import Placed, Verdict
from executors.moe.ranks.places import checkpoint_root, job_folder
from executors.moe.settings import MoeSettings
from executors.node.room import NoRoomError
from executors.node.runner import Activity, CloseReason, Objection, RunnerContext
from executors.workers.run_state import RunState
from schemas.commands import Command
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased, RanksReleaseReason
from schemas.fleet import RunProgressed

_POLL_S = 0.02
_VERDICTS: dict[RanksReleaseReason, Verdict] = {
    "withdrawn": "discard",
    "failed": "discard",
    "node_lost": "stop",
    "preempted": "stop",
    "ended": "stop",
}

_log = logging.getLogger(__name__)


_RUNS: TypeAdapter[list[RunState[Verdict]]] = TypeAdapter(list[RunState[Verdict]])


class MoeRunner:
    """See `Runner`."""

    def __init__(self, context: RunnerContext, settings: MoeSettings, gpus: int) -> None:
        """Have no rank yet, and room for as many as there are GPUs."""
        node = context.settings
        self._context = context
        self._gpus = gpus
        self._settings = settings
        self._place = Workplace(
            cell=node.cell,
            node=node.node,
            state_root=node.state_root,
            output_root=node.output_root,
            settings=settings,
            clock=context.clock,
            report=context.report,
            free_gpus=list(range(gpus)),
        )
        self._jobs: dict[str, JobOnNode] = {}
        self._next: dict[str, RanksAssigned] = {}
        """Assignments of jobs whose present run has to end first."""
        self._restored: list[RunState[Verdict]] = []

    def judge(self, command: Command) -> Objection | None:
        """An assignment must be newer than what the node has of the job, of a kind that ranks are known for,
        and fit onto its GPUs; what is told of a generation must not be of one that is over."""
        if isinstance(command, RanksAssigned):
            return self._judge_assignment(command)
        if isinstance(command, RanksReleased | ExpertsPlaced):
            known = self._newest(command.job_id)
            if known is not None and command.generation < known.generation:
                return _out_of_date(known)
        return None

    def apply(self, command: Command) -> None:
        """Tell the job's ranks; what comes of it is for `advance`."""
        if isinstance(command, RanksAssigned):
            self._assign(command)
        elif isinstance(command, ExpertsPlaced):
            self._place_experts(command)
        elif isinstance(command, RanksReleased):
            self._release(command)

    def advance(self) -> Activity:
        """Hear all ranks, start and end some, and report.

        Raises:
            NoRoomError: a disk refused a checkpoint or a result.
        """
        for run in self._restored:
            self._context.report(run.end(self._place.cell, self._place.node, "ranks"))
        self._restored = []
        needed_bytes = None
        for job_id, job in list(self._jobs.items()):
            job.advance()
            if job.over:
                needed_bytes = job.needed_bytes if needed_bytes is None else needed_bytes
                self._end(job_id, job)
        if needed_bytes is not None:
            refused = self._context.room.refused(needed_bytes)
            if refused is not None:
                raise NoRoomError(refused, needed_bytes)
        return "waiting" if self._jobs else "idle"

    def close(self, reason: CloseReason) -> None:
        """Stop all jobs that have ranks here, checkpointed, within `stop_grace_s`; the cell starts them again
        elsewhere. Without room, what they have learned since their checkpoints is lost."""
        by_s = self._context.clock.time_s() + self._settings.stop_grace_s
        for command in list(self._next.values()):
            self._refuse_to_start(command)
        for job in self._jobs.values():
            job.release(job.verdict or "stop", by_s)
        while self._jobs:
            try:
                self.advance()
            except NoRoomError as error:
                _log.error("checkpoint lost node=%s reason=%s", self._place.node, error)
            time.sleep(_POLL_S)
        _log.info("ranks gone node=%s reason=%s", self._place.node, reason)

    def state(self) -> JsonValue:
        """The runs that the node has, for no rank outlives it."""
        runs = [
            *self._restored,
            *(
                RunState[Verdict](
                    job_id=job_id,
                    run_id=job.command.run_id,
                    samples_done=job.samples_done,
                    verdict=job.verdict or "none",
                )
                for job_id, job in sorted(self._jobs.items())
            ),
            *(
                RunState[Verdict](
                    job_id=job_id,
                    run_id=command.run_id,
                    samples_done=command.resume_samples,
                    verdict="none",
                )
                for job_id, command in sorted(self._next.items())
            ),
        ]
        return [run.model_dump(mode="json") for run in runs] or None

    def restore(self, state: JsonValue) -> None:
        """Note the runs of the process before this one: they are over, and `advance` reports it."""
        self._restored = _RUNS.validate_json(json.dumps(state))

    # Commands

    def _judge_assignment(self, command: RanksAssigned) -> Objection | None:
        nodes = [member.node for member in command.members]
        if len(set(nodes)) < len(nodes):
            return Objection("impossible", "a node is among the members twice")
        if command.node not in nodes:
            return Objection(
                "impossible", f"{command.node} is not among the members {', '.join(nodes)}"[:2_000]
            )
        if command.workload.kind not in RANK_WORK:
            known = ", ".join(sorted(RANK_WORK))
            return Objection(
                "impossible", f"no ranks for jobs of kind {command.workload.kind} here: there are {known}"
            )
        ranks = sum(member.ranks for member in command.members)
        if ranks != command.workload.ranks:
            return Objection(
                "impossible", f"the members have {ranks} ranks, the job {command.workload.ranks}"
            )
        if (needed := len(local_ranks(command))) > self._gpus:
            return Objection("impossible", f"ranks here need {needed} GPUs, the node has {self._gpus}")
        known_command = self._newest(command.job_id)
        if known_command is not None and command.generation <= known_command.generation:
            return _out_of_date(known_command)
        return None

    def _newest(self, job_id: str) -> RanksAssigned | None:
        if job_id in self._next:
            return self._next[job_id]
        return self._jobs[job_id].command if job_id in self._jobs else None

    def _assign(self, command: RanksAssigned) -> None:
        job = self._jobs.get(command.job_id)
        if job is None:
            self._jobs[command.job_id] = JobOnNode(command, self._place)
        else:
            # Whatever still runs of it has no part in what follows.
            job.kill(job.verdict or "stop")
            self._next[command.job_id] = command

    def _place_experts(self, command: ExpertsPlaced) -> None:
        waiting = self._next.get(command.job_id)
        if waiting is not None and command.generation == waiting.generation:
            layers = {layer.layer: layer for layer in (*waiting.placement, *command.layers)}
            self._next[command.job_id] = waiting.model_copy(
                update={"revision": command.revision, "placement": tuple(layers.values())}
            )
            return
        job = self._jobs.get(command.job_id)
        if job is not None and command.generation == job.command.generation:
            job.place_experts(Placed(revision=command.revision, layers=command.layers))

    def _release(self, command: RanksReleased) -> None:
        job_id, verdict = command.job_id, _VERDICTS[command.reason]
        waiting = self._next.get(job_id)
        if waiting is not None and command.generation >= waiting.generation:
            self._refuse_to_start(waiting)
        job = self._jobs.get(job_id)
        if job is None:
            if verdict == "discard":
                self._remove_files(job_id)
        elif command.reason == "node_lost":
            job.kill(verdict)
        else:
            job.release(verdict, self._context.clock.time_s() + self._settings.release_grace_s)

    def _refuse_to_start(self, command: RanksAssigned) -> None:
        """Report a run over that never began."""
        del self._next[command.job_id]
        self._context.report(
            RunProgressed(
                cell=self._place.cell,
                node=self._place.node,
                run_id=command.run_id,
                job_id=command.job_id,
                samples_done=command.resume_samples,
                node_s=0.0,
                complete=True,
            )
        )

    def _end(self, job_id: str, job: JobOnNode) -> None:
        del self._jobs[job_id]
        if job.verdict == "discard":
            self._remove_files(job_id)
        following = self._next.pop(job_id, None)
        if following is not None:
            self._jobs[job_id] = JobOnNode(following, self._place)

    def _remove_files(self, job_id: str) -> None:
        place = self._place
        shutil.rmtree(checkpoint_root(place.state_root, place.cell) / job_id, ignore_errors=True)
        shutil.rmtree(job_folder(place.state_root, place.cell, job_id), ignore_errors=True)


def _out_of_date(known: RanksAssigned) -> Objection:
    return Objection("out_of_date", f"{known.job_id} is in generation {known.generation}")
