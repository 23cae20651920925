"""One job on one node: its worker processes, from their first command to the report that they are gone."""

import logging
from dataclasses import replace

from executors.elastic.messages import ElasticWord, Joined, Progress, WorkerOrder
from executors.elastic.processes import start_worker
from executors.elastic.settings import ElasticSettings
from executors.gang.job_processes import JobProcess, JobProcesses
from executors.gang.membership import Members, Membership
from executors.gang.messages import Ended, Failed, Release
from executors.gang.node import GangNode
from executors.gang.reports import RunReports, Standing
from executors.processes.forked_process import ForkedProcess
from schemas.elastic.commands import WorkersAssigned

_NO_RANK = -1
"""Of a worker that is to leave."""

_log = logging.getLogger(__name__)


def members_of(command: WorkersAssigned) -> Members:
    """The nodes of a generation: each worker is a process for each of its GPUs."""
    gpus = command.workload.gpus_per_worker
    return Members(tuple((member.node, member.workers * gpus) for member in command.members))


class JobOnNode:
    """A job from one generation to the next. See `executors.gang.jobs.Job`."""

    def __init__(self, command: WorkersAssigned, place: GangNode[ElasticSettings]) -> None:
        self.command = command
        ranks = members_of(command).ranks_of(command.node)
        self.processes: JobProcesses[ElasticWord] = JobProcesses(place, ranks, self._start)
        self._place = place
        self._reports = RunReports(place, command.job_id)
        self._standing = Standing(command.resume_samples)
        self._started_run_id = command.run_id
        self._started_generation = 0
        self._reported_samples = command.resume_samples
        self._dataset_samples: int | None = None
        self._result: Ended | None = None
        self._is_gone = False
        """Whether no worker of the job, on any node, holds its state any more."""

    @property
    def is_ending(self) -> bool:
        """Whether its workers here are all to go."""
        return self.processes.verdict is not None or self._is_gone or self.processes.have_failed

    @property
    def members(self) -> Members:
        """Of the newest generation."""
        return members_of(self.command)

    @property
    def kept_samples(self) -> int:
        """What its newest checkpoint has."""
        return self._standing.samples_done if self.command.workload.keeps_checkpoints else 0

    def assign(self, command: WorkersAssigned) -> None:
        """Go on in a newer generation, with as many of the present processes as it has room for."""
        self.command = command
        ranks = list(members_of(command).ranks_of(command.node))
        # Those that hold the job's state first, in their present order.
        staying = sorted(self.processes.running, key=lambda worker: (-worker.joined, worker.rank))
        for worker, rank in zip(staying, ranks, strict=False):
            worker.rank = rank
            worker.process.tell(self._membership(rank))
        # Those that leave are in nobody's way: they train on until the others are complete without them.
        leave_s = self._place.clock.time_s() + self._place.settings.join_timeout_s
        for worker in staying[len(ranks) :]:
            worker.rank = _NO_RANK
            worker.process.tell(Release(verdict="leave", leave_s=leave_s))
        self.processes.vacant = ranks[len(staying) :]

    def advance(self) -> None:
        """Hear the workers, start those that there is room for, and report what has changed."""
        for worker, word in self.processes.hear():
            self._hear(worker, word)
        self.processes.tend()
        self._report_start()

    def report_end(self) -> None:
        """Report what has become of it: no worker of it runs here any more."""
        command, standing = self.command, self._standing
        if self._result is not None:
            self._reports.finished(command.run_id, self._result)
        elif (failure := self.processes.failure) is not None:
            self._reports.failed(command.run_id, self.kept_samples, failure)
        else:
            # Of a job that keeps no checkpoints nothing is left, unless the others go on or it is finished.
            goes_on = self.processes.verdict == "leave" and not self._is_gone
            is_finished = standing.samples_done == command.workload.work_samples
            samples_done = standing.samples_done if goes_on or is_finished else self.kept_samples
            standing = replace(standing, samples_done=samples_done)
            self._reports.over(command.run_id, standing, self.processes.verdict)

    # Workers

    def _membership(self, rank: int) -> Membership:
        world = members_of(self.command).world
        return Membership(generation=self.command.generation, rank=rank, world=world)

    def _start(self, rank: int, gpu: int) -> ForkedProcess[ElasticWord]:
        command = self.command
        return start_worker(
            self._place.order(WorkerOrder, command, self._membership(rank), gpu, workload=command.workload)
        )

    def _hear(self, worker: JobProcess[ElasticWord], word: ElasticWord) -> None:
        match word:
            case Joined():
                self._join(worker, word)
            case Progress():
                self._note(worker, word)
                if worker.joined and word.leads and self._started_generation:
                    self._report_news()
            case Ended():
                self._note(worker, word)
                self._part(worker, word)
            case Failed() if self.processes.verdict is None and not self._is_gone:
                self.processes.fail(word)

    def _join(self, worker: JobProcess[ElasticWord], word: Joined) -> None:
        is_first = not any(each.joined for each in self.processes.running)
        worker.joined = word.generation
        standing = self._standing
        samples_done = word.samples_done if is_first else max(word.samples_done, standing.samples_done)
        self._standing = Standing(samples_done, standing.loss)
        self._dataset_samples = word.dataset_samples
        if word.pause_s is not None and worker.rank == 0:
            _log.info(
                "job scaled job=%s run=%s world=%d scale_pause_s=%.3f",
                *(self.command.job_id, self.command.run_id, members_of(self.command).world, word.pause_s),
            )

    def _note(self, worker: JobProcess[ElasticWord], word: Progress | Ended) -> None:
        if worker.joined:
            # Each of the job's processes learns of a checkpoint at its own next step.
            samples_done = max(word.samples_done, self._standing.samples_done)
            self._standing = Standing(samples_done, word.loss, word.node_s)

    def _part(self, worker: JobProcess[ElasticWord], word: Ended) -> None:
        if word.answers:
            self._result = word
        if word.reason == "left" and worker.rank != _NO_RANK and not self.is_ending:
            # It had left when the node wanted it back.
            self.processes.vacant.append(worker.rank)
        elif word.reason != "left":
            # All of the job's processes stop at the same step.
            self.processes.vacant = []
            self._is_gone = True

    # Reports

    def _report_start(self) -> None:
        command = self.command
        if self._started_generation == command.generation or self.processes.vacant:
            return
        members = [worker for worker in self.processes.running if worker.rank != _NO_RANK]
        has_begun = bool(members) and all(each.joined == command.generation for each in members)
        if self._result is None and (not has_begun or self.is_ending):
            return
        self._started_generation = command.generation
        self._started_run_id = command.run_id
        samples_done = self._reported_samples = self._standing.samples_done
        self._reports.started(command.run_id, command.generation, samples_done, self._dataset_samples)

    def _report_news(self) -> None:
        if self._standing.samples_done != self._reported_samples:
            self._reported_samples = self._standing.samples_done
            self._reports.progressed(self._started_run_id, self._standing)
