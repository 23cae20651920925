"""One job on one node: its worker processes, from their first command to the report that they are gone."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from executors.elastic.messages import (
    Ended,
    Failed,
    Joined,
    Progress,
    Release,
    Verdict,
    WorkerOrder,
)
from executors.elastic.processes import start_worker
from executors.elastic.settings import ElasticSettings
from executors.node.runner import Clock
from executors.workers.membership import Membership
from executors.workers.processes import WorkerProcess, exit_status
from schemas.elastic.commands import WorkersAssigned
from schemas.fleet import FleetEvent, RunFailed, RunFinished, RunProgressed, RunStarted

_FAILURE_GRACE_S = 15.0
"""So long the workers of a job may take to save what they have when one of them has failed."""
_KILL_MARGIN_S = 0.5
"""Processes are killed so long before they must be gone."""
_NO_RANK = -1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workplace:
    """What the jobs of a node share."""

    cell: str
    node: str
    state_root: Path
    output_root: Path
    settings: ElasticSettings
    clock: Clock
    report: Callable[[FleetEvent], None]
    free_gpus: list[int]
    """Not in use by any worker process, in order."""


def local_ranks(command: WorkersAssigned) -> range:
    """The ranks of the command's node, one for each GPU of each of its workers; empty if it has none."""
    first = 0
    for member in command.members:
        count = member.workers * command.workload.gpus_per_worker
        if member.node == command.node:
            return range(first, first + count)
        first += count
    return range(0)


def world_size(command: WorkersAssigned) -> int:
    """All processes of a generation."""
    return sum(member.workers for member in command.members) * command.workload.gpus_per_worker


@dataclass
class _Worker:
    process: WorkerProcess[Joined | Progress | Ended | Failed]
    gpu: int
    rank: int
    """In the newest generation; `_NO_RANK` where it is to leave."""
    joined: int = 0
    """The last generation that it has trained in; 0 before the first."""
    last_word: Ended | Failed | None = None


@dataclass
class _Standing:
    """What reports say of the run."""

    samples_done: int
    loss: float | None = None
    node_s: float = 0.0


@dataclass
class JobOnNode:
    """Obeys the commands for a job, and reports what becomes of it. See `advance`.

    Attributes:
        command: the newest assignment.
        over: whether its end has been reported and nothing of it runs here any more.
    """

    command: WorkersAssigned
    place: Workplace
    over: bool = False
    _workers: list[_Worker] = field(default_factory=list)
    _vacant_ranks: list[int] = field(default_factory=list)
    _started_generation: int = 0
    _verdict: Verdict | None = None
    _kill_s: float | None = None
    _failures: list[Failed] = field(default_factory=list)
    _result: Ended | None = None
    _is_gone: bool = False
    """Whether no worker of the job, on any node, holds its state any more."""
    _dataset_samples: int | None = None

    def __post_init__(self) -> None:
        self._standing = _Standing(self.command.resume_samples)
        self._started_run_id = self.command.run_id
        self._reported_samples = self.command.resume_samples
        self._vacant_ranks = list(local_ranks(self.command))

    @property
    def is_ending(self) -> bool:
        """Whether its workers here are all to go."""
        return self._verdict is not None or self._is_gone or bool(self._failures)

    @property
    def verdict(self) -> Verdict | None:
        """What was said about its end; None while it runs, or if it has failed."""
        return self._verdict

    @property
    def kept_samples(self) -> int:
        """What would be left of the job if its workers here ended now: what its newest checkpoint has."""
        return self._standing.samples_done if self.command.workload.keeps_checkpoints else 0

    @property
    def needed_bytes(self) -> int | None:
        """What a disk had no room for, if that ended it."""
        return next((each.needed_bytes for each in self._failures if each.needed_bytes is not None), None)

    @property
    def pids(self) -> list[int]:
        """Of its processes here."""
        return [worker.process.pid for worker in self._workers]

    def assign(self, command: WorkersAssigned) -> None:
        """Go on in a newer generation, with as many of the present processes as it has room for."""
        self.command = command
        ranks = list(local_ranks(command))
        # Those that hold the job's state first, in their present order.
        staying = sorted(self._workers, key=lambda worker: (-worker.joined, worker.rank))
        for worker, rank in zip(staying, ranks, strict=False):
            self._place(worker, rank)
        for worker in staying[len(ranks) :]:
            worker.rank = _NO_RANK
            # It is in nobody's way: it trains on until the others are complete without it.
            self._tell(worker, "leave", self.place.clock.time_s() + self.place.settings.join_timeout_s)
        self._vacant_ranks = ranks[len(staying) :]

    def release(self, verdict: Verdict, by_s: float | None) -> None:
        """Have all of the workers here go, at the latest at `by_s` or after the usual grace."""
        now_s = self.place.clock.time_s()
        if by_s is None:
            by_s = now_s + self.place.settings.release_grace_s
        self._verdict = verdict
        kill_s = by_s - _KILL_MARGIN_S
        self._kill_s = kill_s if self._kill_s is None else min(kill_s, self._kill_s)
        self._vacant_ranks = []
        for worker in self._workers:
            # A process that others wait for leaves in half of the time, so that they see it go.
            self._tell(worker, verdict, now_s + max(by_s - now_s, 0.0) / 2)

    def kill(self, verdict: Verdict) -> None:
        """Have all of the workers here go at once."""
        self._verdict = verdict
        self._vacant_ranks = []
        for worker in self._workers:
            worker.process.kill()

    def advance(self) -> None:
        """Hear the workers, start those that there is room for, and report what has changed."""
        for worker in list(self._workers):
            is_alive = worker.process.is_alive  # before its words, so that none is missed
            for word in worker.process.words():
                self._hear(worker, word)
            if not is_alive:
                self._bury(worker)
        if self._kill_s is not None and self.place.clock.time_s() >= self._kill_s:
            for worker in self._workers:
                worker.process.kill()
        while self._vacant_ranks and self.place.free_gpus:
            self._start(self._vacant_ranks.pop(0))
        self._report_start()
        if not self._workers and not self._vacant_ranks:
            self._report_end()
            self.over = True

    # Workers

    def _start(self, rank: int) -> None:
        place, settings, command = self.place, self.place.settings, self.command
        gpu = place.free_gpus.pop(0)
        order = WorkerOrder(
            cell=place.cell,
            node=place.node,
            job_id=command.job_id,
            user=command.user,
            workload=command.workload,
            resume_samples=command.resume_samples,
            membership=Membership(generation=command.generation, rank=rank, world=world_size(command)),
            state_root=place.state_root,
            output_root=place.output_root,
            gpu=gpu,
            **settings.model_dump(include=set(WorkerOrder.model_fields)),
        )
        try:
            self._workers.append(_Worker(start_worker(order), gpu, rank))
        except (OSError, EOFError) as error:
            place.free_gpus.insert(0, gpu)
            self._fail(Failed(error=f"no worker process can be started: {error}", permanent=False))

    def _place(self, worker: _Worker, rank: int) -> None:
        worker.rank = rank
        generation, world = self.command.generation, world_size(self.command)
        worker.process.tell(Membership(generation=generation, rank=rank, world=world))

    @staticmethod
    def _tell(worker: _Worker, verdict: Verdict, leave_s: float) -> None:
        worker.process.tell(Release(verdict=verdict, leave_s=leave_s))

    def _hear(self, worker: _Worker, word: Joined | Progress | Ended | Failed) -> None:
        if isinstance(word, Joined):
            is_first = not any(each.joined for each in self._workers)
            worker.joined = word.generation
            standing = self._standing
            samples_done = word.samples_done if is_first else max(word.samples_done, standing.samples_done)
            self._standing = _Standing(samples_done, standing.loss)
            self._dataset_samples = word.dataset_samples
            if word.pause_s is not None and worker.rank == 0:
                _log.info(
                    "job scaled job=%s run=%s world=%d scale_pause_s=%.3f",
                    *(self.command.job_id, self.command.run_id, world_size(self.command), word.pause_s),
                )
        elif worker.joined:
            if isinstance(word, Progress | Ended):
                # Each of the job's processes learns of a checkpoint at its own next step.
                samples_done = max(word.samples_done, self._standing.samples_done)
                self._standing = _Standing(samples_done, word.loss, word.node_s)
            if isinstance(word, Progress) and word.leads and self._started_generation:
                self._report_news()
        if isinstance(word, Ended | Failed):
            worker.last_word = word

    def _bury(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.close()
        self.place.free_gpus.append(worker.gpu)
        self.place.free_gpus.sort()
        word = worker.last_word
        if isinstance(word, Ended):
            if word.published:
                self._result = word
            if word.reason == "left" and worker.rank != _NO_RANK and not self.is_ending:
                # It had left when the node wanted it back.
                self._vacant_ranks.append(worker.rank)
            elif word.reason != "left":
                # All of the job's processes stop at the same step.
                self._vacant_ranks = []
                self._is_gone = True
        elif self._verdict is None and not self._is_gone:
            self._fail(word or _death(worker))

    def _fail(self, failure: Failed) -> None:
        if not self._failures:
            self._kill_s = self.place.clock.time_s() + _FAILURE_GRACE_S
            for worker in self._workers:
                self._tell(worker, "stop", 0.0)
        self._vacant_ranks = []
        self._failures.append(failure)

    # Reports

    def _report_start(self) -> None:
        command = self.command
        if self._started_generation == command.generation or self._vacant_ranks:
            return
        members = [worker for worker in self._workers if worker.rank != _NO_RANK]
        has_begun = bool(members) and all(each.joined == command.generation for each in members)
        if self._result is None and (not has_begun or self.is_ending):
            return
        self._started_generation = command.generation
        self._started_run_id = command.run_id
        self._reported_samples = self._standing.samples_done
        self.place.report(
            RunStarted(
                **self._of(command.run_id),
                samples_done=self._standing.samples_done,
                dataset_samples=self._dataset_samples,
            )
        )
        self._say("run started", generation=command.generation, samples_done=self._standing.samples_done)

    def _report_news(self) -> None:
        samples_done = self._standing.samples_done
        if samples_done != self._reported_samples:
            self._report_progress(self._started_run_id, samples_done, complete=False)

    def _report_progress(self, run_id: str, samples_done: int, *, complete: bool) -> None:
        standing = self._standing
        self._reported_samples = samples_done
        self.place.report(
            RunProgressed(
                **self._of(run_id),
                samples_done=samples_done,
                loss=standing.loss,
                node_s=standing.node_s,
                complete=complete,
            )
        )

    def _report_end(self) -> None:
        command, result = self.command, self._result
        if result is not None:
            self.place.report(
                RunFinished(
                    **self._of(command.run_id),
                    samples_done=result.samples_done,
                    loss=result.loss,
                    adapter_path=result.adapter_path,
                    adapter_digest=result.adapter_digest,
                )
            )
            self._say("run finished", samples_done=result.samples_done)
        elif self._failures and self._verdict is None:
            failure = min(self._failures, key=lambda each: (not each.permanent, each.cause == "peer"))
            self.place.report(
                RunFailed(
                    **self._of(command.run_id),
                    samples_done=self.kept_samples,
                    error=failure.error,
                    permanent=failure.permanent,
                )
            )
            self._say("run failed", permanent=failure.permanent, error=repr(failure.error))
        else:
            # Of a job that keeps no checkpoints nothing is left, unless the others go on or it is finished.
            goes_on = self._verdict == "leave" and not self._is_gone
            is_finished = self._standing.samples_done == command.workload.work_samples
            samples_done = self._standing.samples_done if goes_on or is_finished else self.kept_samples
            self._report_progress(command.run_id, samples_done, complete=True)
            self._say("run over", verdict=self._verdict, samples_done=samples_done)

    def _of(self, run_id: str) -> dict[str, str]:
        place = self.place
        return {"cell": place.cell, "node": place.node, "run_id": run_id, "job_id": self.command.job_id}

    def _say(self, what: str, **fields: object) -> None:
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        _log.info("%s job=%s run=%s%s", what, self.command.job_id, self.command.run_id, rest)


def _death(worker: _Worker) -> Failed:
    how = exit_status(worker.process.exit_code)
    return Failed(error=f"a worker process has ended with {how} and no word", permanent=False)
