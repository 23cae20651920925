"""Base of the runners of gangs: jobs of several ranks over nodes, in generations, by the cell's commands."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from pydantic import JsonValue, TypeAdapter

from executors.devices import gpus_of
from executors.gang.gang_node import Assignment
from executors.gang.local_gang import GangTraits, LocalGang
from executors.gang.messages import Verdict
from executors.gang.rank_runner import RankRunner, StopReason
from executors.gang.run_state import RunState
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


class GangRunner(RankRunner[JobSettings, LocalGang[C], C, Releasing], Generic[C]):
    """The gangs of a node. See `Runner`.

    A subclass defines the runner's commands and their traits, and the newer generations in which the present
    ranks continue.
    """

    TRAITS: ClassVar[GangTraits[Any]]
    VERDICTS: ClassVar[Mapping[str, Verdict]] = {
        "withdrawn": "discard",
        "failed": "discard",
        "node_lost": "stop",
        "preempted": "stop",
    }
    """Ends of ranks, by the reason of their release. With `node_lost` they are killed: they wait for each
    other."""

    def __init__(self, context: RunnerContext, settings: JobSettings, gpus: int) -> None:
        """Start without ranks; there is room for one per GPU."""
        super().__init__(context, settings, gpus)
        self._restored: list[RunState] = []

    # Decisions of runners

    def objection(self, command: C) -> Objection | None:
        return self.TRAITS.members_of(command).objection(command.node, self._node.gpus)

    def is_continued(self, command: C) -> bool:  # noqa: ARG002 -- for runners that scale jobs
        """Return whether the present ranks continue in a newer generation, rather than end before it."""
        return False

    def release_deadline_s(self, command: Releasing) -> float | None:  # noqa: ARG002 -- likewise
        """Return the time by which ranks must be gone (Unix time); None for `release_grace_s` from now."""
        return None

    # Commands

    def jobs_of(self, command: C | Releasing) -> tuple[str, ...]:
        return (command.job_id,)

    def assignment_of(self, command: C) -> LocalGang[C]:
        return LocalGang(command, self._node, self.TRAITS)

    def begin(self, assignment: LocalGang[C]) -> None:
        assignment.advance()

    def replace(self, assignment: LocalGang[C], command: C) -> bool:
        processes = assignment.processes
        if not self.is_continued(command):
            self.stop(assignment, "newer")  # its ranks have no place in the new generation
        elif assignment.is_ending:
            processes.release(processes.verdict or "stop", self._stop_by_s)
        else:
            assignment.assign(command)
            return True
        return False

    def release(self, assignment: LocalGang[C], command: Releasing) -> None:
        verdict, processes = self.VERDICTS[command.reason], assignment.processes
        if verdict == "leave" and command.generation != assignment.generation:
            return  # a `leave` that is read with its assignment, and before it, is repeated after it
        if command.reason == "node_lost":
            processes.kill(verdict)
        else:
            processes.release(verdict, self.release_deadline_s(command))

    def stop(self, assignment: LocalGang[C], reason: StopReason) -> None:
        """End ranks: at once without another checkpoint, or with one if the node stops."""
        processes = assignment.processes
        if reason == "node_stops":
            processes.release("discard" if processes.verdict == "discard" else "stop", self._stop_by_s)
        else:
            processes.kill(processes.verdict or "stop")

    def clear(self, job_id: str, command: Releasing) -> None:
        if self.VERDICTS[command.reason] == "discard":
            self._remove_files(job_id)

    @property
    def _stop_by_s(self) -> float:
        return self._node.clock.time_s() + self._node.settings.stop_grace_s

    # Work

    def receive(self) -> Iterator[int | None]:
        for run in self._restored:
            run.report_end(self._node.reports_of(run))
        self._restored = []
        for gang in self.assignments:
            if gang.has_begun:
                gang.advance()
                yield gang.processes.needed_bytes if gang.is_over else None

    def settle(self, assignment: LocalGang[C]) -> None:
        assignment.report_end()
        failure = assignment.processes.failure
        # No other node reads the reason, and a node without ranks of the job gets no more commands about it.
        is_last = failure is not None and failure.permanent and assignment.members.is_one_node
        if assignment.processes.verdict == "discard" or is_last:
            self._remove_files(assignment.command.job_id)

    def close(self, reason: CloseReason) -> None:
        """See `Runner`. All jobs stop, with a checkpoint, within `stop_grace_s`. Without room, training since
        the last checkpoints is lost."""
        self.finish_work()
        _log.info("ranks gone node=%s reason=%s", self._node.node, reason)

    # Journal

    def state(self) -> JsonValue:
        """See `Runner`. Ranks end with the node's process: these runs are over for the next one."""
        runs = [*self._restored, *(gang.state() for gang in self.assignments)]
        return [run.model_dump(mode="json") for run in runs] or None

    def restore(self, state: JsonValue) -> None:
        """See `Runner`. `advance` reports the end of these runs."""
        self._restored = _RUNS.validate_json(json.dumps(state))

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
