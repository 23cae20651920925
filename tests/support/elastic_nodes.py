"""Nodes with the runner `elastic`, without a broker, on one machine and one shared disk."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

from executors.elastic.runner import ElasticRunner
from executors.elastic.settings import ElasticSettings
from schemas.elastic.commands import Member, ReleaseReason, WorkersAssigned, WorkersReleased
from schemas.elastic.workload import ElasticWorkload
from schemas.fleet import RunProgressed, RunReport, RunStarted
from schemas.lora import Dataset
from tests.support.nodes import WAIT_S, Members, Node, Nodes, is_end

MODEL = "tiny"
DATASET = "pairs.jsonl"
_FIRST_STOP_S, _STOP_GROWTH, _LONGEST_STOP_S = 0.005, 1.1, 0.5


def workload(
    work: int = 604,
    *,
    keeps: bool = True,
    most: int = 4,
    hyperparameters: dict[str, object] | None = None,
    **fields: object,
) -> ElasticWorkload:
    """A job of the tiny model, with batches of eight that are no whole number of micro-batches for all."""
    chosen = {
        "global_batch_size": 8,
        "micro_batch_size": 5,
        "sequence_length": 24,
        "learning_rate": 1e-3,
    } | (hyperparameters or {})
    return ElasticWorkload.model_validate(
        {
            "work_samples": work,
            "model": MODEL,
            "dataset": Dataset(path=DATASET, samples=48),
            "hyperparameters": chosen,
            "max_workers": most,
            "samples_per_s": 1.0,
            "keeps_checkpoints": keeps,
        }
        | fields
    )


@dataclass
class Fleet(Nodes[ElasticRunner, ElasticSettings]):
    """Nodes with the runner `elastic`."""

    EXECUTOR: ClassVar = {"runners": ("elastic",)}

    _slow_pids: Sequence[int] = ()
    _stop_s: float = _FIRST_STOP_S

    def add(self, name: str, gpus: int = 2, **settings: object) -> Node[ElasticRunner]:
        """Start a node."""
        return self.begin(name, ElasticRunner, gpus, **settings)

    def assign(
        self,
        job_id: str,
        generation: int,
        members: Members,
        work: ElasticWorkload,
        *,
        resumes: bool | None = None,
        resume_samples: int = 0,
        only: Sequence[str] | None = None,
    ) -> None:
        """Send a generation's command to its members, or to some of them."""
        for name, _ in members:
            if only is None or name in only:
                command = assigned(
                    name, job_id, generation, members, work, resumes=resumes, resume_samples=resume_samples
                )
                self.send(command)

    def release(
        self,
        job_id: str,
        generation: int,
        names: Sequence[str],
        reason: ReleaseReason = "scaled_in",
        by_s: float | None = None,
    ) -> None:
        """Take a job from nodes."""
        for name in names:
            self.send(released(name, job_id, generation, reason, by_s))

    def until(self, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        """Advance the nodes until a condition holds."""
        self._stop_s = _FIRST_STOP_S
        super().until(condition, timeout_s)

    def rest(self) -> None:
        """Let their processes run for a moment, and then all but the slow ones for longer."""
        self._signal(signal.SIGCONT)
        super().rest()
        if self._slow_pids:
            self._signal(signal.SIGSTOP)
            time.sleep(self._stop_s)
            self._stop_s = min(_STOP_GROWTH * self._stop_s, _LONGEST_STOP_S)

    @contextmanager
    def slowed(self, name: str) -> Iterator[None]:
        """Let the workers that a node has now take few steps, however long others need to begin on a busy
        machine: they run for a moment in each turn, and are stopped for longer the longer something is waited
        for."""
        self._slow_pids = self.pids(name)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)
            self._slow_pids = ()

    def has_started(self, job_id: str, generation: int, *names: str) -> Callable[[], bool]:
        """Whether the workers of a generation take part on each of these nodes."""

        def check() -> bool:
            run_id = run_of(job_id, generation)
            return all(
                any(report.run_id == run_id for report in self.reports(RunStarted, job_id, name))
                for name in names
            )

        return check

    def has_trained(self, job_id: str, generation: int = 1) -> Callable[[], bool]:
        """Whether a step of the job in this generation or a later one has been reported, kept or not."""
        return lambda: any(
            report.loss is not None and not report.complete and _generation(report) >= generation
            for report in self.reports(RunProgressed, job_id)
        )

    def is_over(self, job_id: str, *names: str, generation: int = 1) -> Callable[[], bool]:
        """Whether each of these nodes has reported the end of the job in this generation or a later one."""

        def check() -> bool:
            return all(
                any(
                    is_end(report) and _generation(report) >= generation
                    for report in self.reports(RunReport, job_id, name)
                )
                for name in names
            )

        return check

    def losses(self, job_id: str) -> dict[int, float]:
        """The loss of each step that was reported, by the samples trained with it."""
        return {
            report.samples_done: report.loss
            for report in self.reports(RunProgressed, job_id)
            if report.loss is not None and not report.complete
        }

    def progress(self, job_id: str) -> int:
        """Return the most samples done by any report."""
        return max((report.samples_done for report in self.reports(RunReport, job_id)), default=0)

    def pids(self, node: str) -> list[int]:
        """Return the process ids of a node's workers."""
        jobs = self.nodes[node].runner.assignments
        return [pid for job in jobs for pid in job.processes.pids]

    def _signal(self, number: int) -> None:
        for pid in self._slow_pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def run_of(job_id: str, generation: int) -> str:
    """Return the name of a generation's run."""
    return f"{job_id}/{generation}"


def _generation(report: RunReport) -> int:
    return int(report.run_id.rpartition("/")[2])


def assigned(
    node: str,
    job_id: str,
    generation: int,
    members: Members,
    work: ElasticWorkload,
    *,
    resumes: bool | None = None,
    resume_samples: int = 0,
) -> WorkersAssigned:
    """Return the command to one member of a generation."""
    return WorkersAssigned(
        zone="z",
        node=node,
        run_id=run_of(job_id, generation),
        job_id=job_id,
        user="u",
        generation=generation,
        members=tuple(Member(node=name, workers=workers) for name, workers in members),
        resumes=generation == 1 if resumes is None else resumes,
        resume_samples=resume_samples,
        expected_samples_per_s=1.0,
        workload=work,
    )


def released(
    node: str, job_id: str, generation: int, reason: ReleaseReason = "scaled_in", by_s: float | None = None
) -> WorkersReleased:
    """Return the command that releases a node's workers."""
    return WorkersReleased(
        zone="z", node=node, job_id=job_id, generation=generation, reason=reason, by_s=by_s
    )
