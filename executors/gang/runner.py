"""Base of the runners of gangs: jobs of several ranks over nodes, in generations, by the cell's commands."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from pydantic import JsonValue, TypeAdapter

from executors.devices import gpus_of
from executors.gang.local_gang import GangTraits, LocalGang
from executors.gang.messages import Verdict
from executors.gang.node import Assignment
from executors.gang.rank_processes import RankProcesses
from executors.gang.rank_runner import RankRunner, objection_to_generation
from executors.gang.reports import RunReports, RunStanding, RunState
from executors.node.places import checkpoint_root, job_folder
from executors.node.runner import CloseReason, Objection, Runner, RunnerContext
from executors.processes.forked_process import warm_up
from executors.settings import GangSettings, JobSettings
from schemas.commands import Command
from schemas.errors import require_extra

_RUNS = TypeAdapter(list[RunState])

_log = logging.getLogger(__name__)

C = TypeVar("C", bound=Assignment)


class Releasing(Protocol):
    """Command by which a node ends its ranks of a job."""

    @property
    def job_id(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def reason(self) -> str: ...


class GangRunner(RankRunner[JobSettings], Generic[C]):
    """The gangs of a node. See `Runner`.

    A subclass defines the runner's commands and their traits, and the newer generations in which the present
    ranks continue.

    Attributes:
        present: gangs on the node, by job id.
        following: assignments of jobs whose present run has to end first, by job id.
    """

    ASSIGNED: ClassVar[type[Command]]
    """An `Assignment`."""
    RELEASED: ClassVar[type[Command]]
    """A `Releasing` command. With the reason `node_lost`, its ranks are killed: they wait for each other."""
    TRAITS: ClassVar[GangTraits[Any]]
    VERDICTS: ClassVar[Mapping[str, Verdict]] = {
        "withdrawn": "discard",
        "failed": "discard",
        "node_lost": "stop",
        "preempted": "stop",
    }
    """Ends of ranks, by the reason of their release."""

    def __init__(self, context: RunnerContext, settings: JobSettings, gpus: int) -> None:
        """Start without ranks; there is room for one per GPU."""
        super().__init__(context, settings, gpus)
        self.present: dict[str, LocalGang[C]] = {}
        self.following: dict[str, C] = {}
        self._restored: list[RunState] = []

    # Decisions of runners

    def objection(self, command: C) -> Objection | None:  # noqa: ARG002 -- for runners that have any
        """Return why an assignment is impossible, besides the reasons of all gangs; None if it is
        possible."""
        return None

    def is_continued(self, command: C) -> bool:  # noqa: ARG002 -- for runners that scale jobs
        """Return whether the present ranks continue in a newer generation, rather than end before it."""
        return False

    def release_deadline_s(self, command: Releasing) -> float | None:  # noqa: ARG002 -- likewise
        """Return the time by which ranks must be gone (Unix time); None for `release_grace_s` from now."""
        return None

    # Commands

    def validate(self, command: Command) -> Objection | None:
        """See `Runner`. An assignment must be newer than those of the job on the node, and fit its GPUs;
        other commands must be of a generation on the node."""
        if isinstance(command, self.ASSIGNED):
            assigned = cast(C, command)
            members = self.TRAITS.members_of(assigned)
            impossible = members.objection(assigned.node, self._node.gpus) or self.objection(assigned)
            return impossible or self._stale_assignment(assigned)
        generation = getattr(command, "generation", None)
        return None if generation is None else self._stale(command.job_id, generation)  # type: ignore[attr-defined]

    def apply(self, command: Command) -> None:
        """See `Runner`. Ranks are started and ended by `advance`."""
        if isinstance(command, self.ASSIGNED):
            self._assign(cast(C, command))
        elif isinstance(command, self.RELEASED):
            self._release(cast(Releasing, command))

    def disown(self, run_id: str, job_id: str) -> None:
        """See `Runner`. The ranks end at once, without another checkpoint."""
        following, present = self.following.get(job_id), self.present.get(job_id)
        if following is not None and following.run_id == run_id:
            self._drop_following(following)
        if present is not None and present.command.run_id == run_id:
            _log.info("run disowned job=%s run=%s", job_id, run_id)
            present.processes.kill(present.processes.verdict or "stop")

    def held_runs(self) -> list[str]:
        continuing = (
            gang.command.run_id
            for gang in self.present.values()
            if gang.processes.verdict is None and not gang.processes.have_failed
        )
        return [*continuing, *(each.run_id for each in self.following.values())]

    # Work

    @property
    def is_idle(self) -> bool:
        return not self.present

    def advance_ranks(self) -> Iterator[int | None]:
        for run in self._restored:
            self._node.report(run.end(self._node.cell, self._node.node))
        self._restored = []
        for job_id, gang in list(self.present.items()):
            gang.advance()
            if gang.processes.are_gone:
                gang.report_end()
                self._end(job_id, gang)
                yield gang.processes.needed_bytes

    def close(self, reason: CloseReason) -> None:
        """See `Runner`. All jobs stop, with a checkpoint, within `stop_grace_s`. Without room, training since
        the last checkpoints is lost."""
        by_s = self._node.clock.time_s() + self._node.settings.stop_grace_s
        for command in list(self.following.values()):
            self._drop_following(command)
        for gang in self.present.values():
            processes = gang.processes
            processes.release("discard" if processes.verdict == "discard" else "stop", by_s)
        self.finish_work()
        _log.info("ranks gone node=%s reason=%s", self._node.node, reason)

    # Journal

    def state(self) -> JsonValue:
        """See `Runner`. Ranks end with the node's process: these runs are over for the next one."""
        unbegun = {job_id: self._gang(each) for job_id, each in self.following.items()}
        runs = [
            *self._restored,
            *(
                RunState(
                    job_id=job_id,
                    run_id=gang.command.run_id,
                    samples_done=gang.kept_samples,
                    verdict=gang.processes.verdict or "none",
                )
                for gangs in (self.present, unbegun)
                for job_id, gang in sorted(gangs.items())
            ),
        ]
        return [run.model_dump(mode="json") for run in runs] or None

    def restore(self, state: JsonValue) -> None:
        """See `Runner`. `advance` reports the end of these runs."""
        self._restored = _RUNS.validate_json(json.dumps(state))

    # Generations

    def _newest(self, job_id: str) -> C | None:
        following = self.following.get(job_id)
        if following is None and job_id in self.present:
            return self.present[job_id].command
        return following

    def _stale_assignment(self, command: C) -> Objection | None:
        newest = self._newest(command.job_id)
        if newest is None or newest == command:
            return None
        return objection_to_generation([command.job_id], newest.generation, command.generation - 1)

    def _stale(self, job_id: str, generation: int) -> Objection | None:
        newest = self._newest(job_id)
        return objection_to_generation([job_id], None if newest is None else newest.generation, generation)

    def _assign(self, command: C) -> None:
        gang = self.present.get(command.job_id)
        if self._has(command):
            return  # the order is a duplicate
        if gang is None:
            self.present[command.job_id] = self._gang(command)
        elif not self.is_continued(command):
            # Present ranks have no place in the new generation.
            gang.processes.kill(gang.processes.verdict or "stop")
            self.following[command.job_id] = command
        elif gang.is_ending:
            by_s = self._node.clock.time_s() + self._node.settings.stop_grace_s
            gang.processes.release(gang.processes.verdict or "stop", by_s)
            self.following[command.job_id] = command
        else:
            gang.assign(command)

    def _has(self, command: C) -> bool:
        """Return whether the newest assignment of the job is this one, and is not to end."""
        present = self.present.get(command.job_id)
        if command.job_id in self.following or present is None:
            return self.following.get(command.job_id) == command
        return present.command == command and present.processes.verdict is None

    def _release(self, command: Releasing) -> None:
        verdict = self.VERDICTS[command.reason]
        processes = self._ending(command.job_id, command.generation, verdict)
        if processes is None:
            return
        if command.reason == "node_lost":
            processes.kill(verdict)
        else:
            processes.release(verdict, self.release_deadline_s(command))

    def _ending(self, job_id: str, generation: int, verdict: Verdict) -> RankProcesses | None:
        """End a generation of a job and those before it: drop an assignment that has not begun, remove files
        that are not to be kept, and return the ranks that are to end."""
        following = self.following.get(job_id)
        if following is not None and generation >= following.generation:
            self._drop_following(following)
        gang = self.present.get(job_id)
        if gang is None:
            if verdict == "discard":
                self._remove_files(job_id)
            return None
        # A `leave` that is read with its assignment, and before it, is repeated after it.
        applies = verdict != "leave" or generation == gang.command.generation
        return gang.processes if applies else None

    def _gang(self, command: C) -> LocalGang[C]:
        return LocalGang(command, self._node, self.TRAITS)

    def _drop_following(self, command: C) -> None:
        """Report the end of a run that never began."""
        del self.following[command.job_id]
        reports = RunReports(self._node, command.job_id)
        reports.progressed(command.run_id, RunStanding(command.resume_samples), complete=True)

    def _end(self, job_id: str, gang: LocalGang[C]) -> None:
        del self.present[job_id]
        failure = gang.processes.failure
        # No other node reads the reason, and a node without ranks of the job gets no more commands about it.
        is_last = failure is not None and failure.permanent and gang.members.is_one_node
        if gang.processes.verdict == "discard" or is_last:
            self._remove_files(job_id)
        following = self.following.pop(job_id, None)
        if following is not None:
            self.present[job_id] = self._gang(following)

    def _remove_files(self, job_id: str) -> None:
        root, cell = self._node.state_root, self._node.cell
        for path in (checkpoint_root(root, cell) / job_id, job_folder(root, cell, job_id)):
            shutil.rmtree(path, ignore_errors=True)


class GangRunnerKind:
    """Base of entry points of the group `millrace.runners`, for runners of gangs. See `RunnerKind`."""

    commands: ClassVar[tuple[type[Command], ...]]
    SETTINGS: ClassVar[type[GangSettings]]
    RUNNER: ClassVar[str]
    """`module:callable` that returns the runner, of a context, the settings and the number of GPUs."""
    MODULES: ClassVar[tuple[str, ...]]
    """Modules of ranks, which the fork server imports."""

    def __init__(self) -> None:
        """Check libraries, settings and folders.

        Raises:
            MissingExtraError: torch or another library is not installed.
            UnfitError: a folder is missing, or the worker host is another machine.
            ValidationError: a setting is invalid.
        """
        require_extra("executors")
        self._settings = self.SETTINGS()
        self._settings.check()

    def load(self, context: RunnerContext) -> Runner:
        """Start the fork server, which imports torch and transformers: some ten seconds.

        Raises:
            UnfitError: a requirement of the runner is missing or invalid.
            ValueError: the machine has fewer CUDA devices than are set.
        """
        settings = self._settings
        gpus = gpus_of(settings.device, settings.gpus, warm_up(*self.MODULES))
        return cast(Runner, resolve_name(self.RUNNER)(context, settings, gpus))
