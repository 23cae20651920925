"""The jobs of a runner on its node, from an assignment to the report that nothing of it is here any more."""

import json
import logging
import shutil
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from pydantic import JsonValue, TypeAdapter

from executors.gang.job_processes import JobProcesses
from executors.gang.membership import Members
from executors.gang.messages import Verdict
from executors.gang.node import Assignment, GangNode
from executors.gang.places import checkpoint_root, job_folder
from executors.gang.reports import RunReports, Standing
from executors.gang.run_state import RunState
from executors.node.room import NoRoomError
from executors.node.runner import Activity, CloseReason, Objection, RunnerContext

_POLL_S = 0.02
_RUNS = TypeAdapter(list[RunState])

_log = logging.getLogger(__name__)


class Job(Protocol):
    """A job on a node, in its newest generation there."""

    @property
    def command(self) -> Assignment:
        """The newest assignment."""

    @property
    def processes(self) -> JobProcesses[Any]:
        """Those on this node."""

    @property
    def members(self) -> Members:
        """Members of the newest generation."""

    @property
    def kept_samples(self) -> int:
        """Samples that would be kept of the job if its processes here ended now."""

    def advance(self) -> None:
        """Hear the processes, start those that there is room for, and report what has changed."""

    def report_end(self) -> None:
        """Report what has become of it: nothing of it runs here any more."""


C = TypeVar("C", bound=Assignment)
J = TypeVar("J", bound=Job)


class Jobs(Generic[C, J]):
    """The part of a runner that is the same for all kinds of jobs.

    Attributes:
        present: by id.
        following: assignments of jobs whose present run has to end first, by id.
    """

    def __init__(
        self,
        context: RunnerContext,
        place: GangNode[Any],
        begin: Callable[[C, GangNode[Any]], J],
    ) -> None:
        """Have none yet.

        Args:
            begin: makes the job of an assignment. Its processes are for `Job.advance`.
        """
        self.present: dict[str, J] = {}
        self.following: dict[str, C] = {}
        self._context = context
        self._place = place
        self._begin = begin
        self._restored: list[RunState] = []

    def out_of_date(self, job_id: str, generation: int) -> Objection | None:
        """Why what is told of a generation is not applied: the node knows of a newer one. None if it does
        not."""
        newest = self._newest(job_id)
        if newest is None or generation >= newest.generation:
            return None
        return Objection("out_of_date", f"{job_id} is in generation {newest.generation}")

    def objection(self, command: C) -> Objection | None:
        """Why an assignment is not taken on: it is not newer than what the node has of the job. None if it
        is, or if it is what the node has."""
        newest = self._newest(command.job_id)
        return None if newest == command else self.out_of_date(command.job_id, command.generation - 1)

    def objection_of_generation(self, job_id: str, generation: int) -> Objection | None:
        """Why a command about a generation is out of place: the node has a newer one, or none of the job."""
        if self._newest(job_id) is None:
            return Objection("unknown_run", f"nothing of {job_id} runs here")
        return self.out_of_date(job_id, generation)

    def has(self, command: C) -> bool:
        """Whether the newest assignment of the job is this one, and is not to end."""
        present = self.present.get(command.job_id)
        if command.job_id in self.following or present is None:
            return self.following.get(command.job_id) == command
        return present.command == command and present.processes.verdict is None

    def disown(self, run_id: str, job_id: str) -> None:
        """Have the processes of a run end at once, without another checkpoint."""
        following, present = self.following.get(job_id), self.present.get(job_id)
        if following is not None and following.run_id == run_id:
            self._refuse_to_start(following)
        if present is not None and present.command.run_id == run_id:
            _log.info("run disowned job=%s run=%s", job_id, run_id)
            present.processes.kill(present.processes.verdict or "stop")

    def held_runs(self) -> list[str]:
        """The runs of jobs whose processes here are not to end, and those that follow."""
        going_on = (
            job.command.run_id
            for job in self.present.values()
            if job.processes.verdict is None and not job.processes.have_failed
        )
        return [*going_on, *(each.run_id for each in self.following.values())]

    def begin(self, command: C) -> None:
        """Have a job that is not present."""
        self.present[command.job_id] = self._begin(command, self._place)

    def ending(self, job_id: str, generation: int, verdict: Verdict) -> JobProcesses[Any] | None:
        """End a generation of a job and those before it: an assignment that has not begun is refused, files
        that are not to be kept are removed, and the processes that are still to be told are returned."""
        following = self.following.get(job_id)
        if following is not None and generation >= following.generation:
            self._refuse_to_start(following)
        job = self.present.get(job_id)
        if job is None:
            if verdict == "discard":
                self._remove_files(job_id)
            return None
        # A `leave` that comes before its assignment, with which it was read, comes again after it.
        is_meant = verdict != "leave" or generation == job.command.generation
        return job.processes if is_meant else None

    def advance(self) -> Activity:
        """Hear all processes, start and end some, and report.

        Raises:
            NoRoomError: a disk refused a checkpoint or a result.
        """
        place = self._place
        for run in self._restored:
            place.report(run.end(place.cell, place.node, place.called))
        self._restored = []
        needed_bytes = None
        for job_id, job in list(self.present.items()):
            job.advance()
            if job.processes.are_gone:
                job.report_end()
                needed_bytes = job.processes.needed_bytes if needed_bytes is None else needed_bytes
                self._end(job_id, job)
        if needed_bytes is not None:
            refused = self._context.room.refused(needed_bytes)
            if refused is not None:
                raise NoRoomError(refused, needed_bytes)
        return "waiting" if self.present else "idle"

    def close(self, reason: CloseReason) -> None:
        """Stop all jobs, checkpointed, within `stop_grace_s`; the cell starts them again elsewhere. Without
        room, what they have learned since their checkpoints is lost."""
        place = self._place
        by_s = place.clock.time_s() + place.settings.stop_grace_s
        for command in list(self.following.values()):
            self._refuse_to_start(command)
        for job in self.present.values():
            processes = job.processes
            processes.release("discard" if processes.verdict == "discard" else "stop", by_s)
        while self.present:
            try:
                self.advance()
            except NoRoomError as error:
                _log.error("checkpoint lost node=%s reason=%s", place.node, error)
            time.sleep(_POLL_S)
        _log.info("%ss gone node=%s reason=%s", place.called, place.node, reason)

    def state(self) -> JsonValue:
        """The runs that the node has, for no process outlives it."""
        unbegun = {job_id: self._begin(each, self._place) for job_id, each in self.following.items()}
        runs = [
            *self._restored,
            *(
                RunState(
                    job_id=job_id,
                    run_id=job.command.run_id,
                    samples_done=job.kept_samples,
                    verdict=job.processes.verdict or "none",
                )
                for jobs in (self.present, unbegun)
                for job_id, job in sorted(jobs.items())
            ),
        ]
        return [run.model_dump(mode="json") for run in runs] or None

    def restore(self, state: JsonValue) -> None:
        """Note the runs of the process before this one: they are over, and `advance` reports it.

        Raises:
            ValueError: these are none.
        """
        self._restored = _RUNS.validate_json(json.dumps(state))

    def _newest(self, job_id: str) -> Assignment | None:
        following = self.following.get(job_id)
        if following is None and job_id in self.present:
            return self.present[job_id].command
        return following

    def _refuse_to_start(self, command: C) -> None:
        """Report a run over that never began."""
        del self.following[command.job_id]
        reports = RunReports(self._place, command.job_id)
        reports.progressed(command.run_id, Standing(command.resume_samples), complete=True)

    def _end(self, job_id: str, job: J) -> None:
        del self.present[job_id]
        failure = job.processes.failure
        # No other node reads why, and the cell tells nothing more to one that has nothing of the job.
        is_forgotten = failure is not None and failure.permanent and job.members.is_one_node
        if job.processes.verdict == "discard" or is_forgotten:
            self._remove_files(job_id)
        following = self.following.pop(job_id, None)
        if following is not None:
            self.begin(following)

    def _remove_files(self, job_id: str) -> None:
        root, cell = self._place.state_root, self._place.cell
        for path in (checkpoint_root(root, cell) / job_id, job_folder(root, cell, job_id)):
            shutil.rmtree(path, ignore_errors=True)
