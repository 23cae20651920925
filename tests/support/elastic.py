"""Elastic zones for tests: a small cell, its jobs, and nodes that obey their commands."""

from collections import deque
from typing import Any

from schemas.base import HOURS_PER_DAY, Outcome
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.commands import Command
from schemas.decisions import NodeMoved
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.fleet import FleetEvent, NodeOnline, RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted, JobWithdrawalRequested
from schemas.lora import Dataset
from streams.policies.inference.kind import InferencePolicy
from tests.support.twins import ZONE, TwinBench

CELL = "c"
INTERVAL_S = 60.0
LENDER = "infer"
NOTICE_S = 120.0
GPUS = 4
"""GPUs of each server."""
GPU_TYPES = (
    GpuType(name="V100", samples_per_s=400.0, memory_gib=128.0, gpus=GPUS),
    GpuType(name="T4", samples_per_s=400.0 / 3, memory_gib=64.0, gpus=GPUS),
)


class ElasticBench(TwinBench):
    """See `TwinBench`."""

    def counted(self) -> tuple[Any, int]:
        state = self.zone.state()
        return [state["jobs"], state["cluster"]["jobs"]], self.cell.live_jobs_bytes


def elastic_cell(servers: int = 2, lendable: int = 0, gpu_type: str = "T4", **policy: Any) -> CellConfigured:
    """A cell of an elastic zone, with servers s0, s1, ... of four GPUs, and one that lends it i0, i1, ..."""
    zones = (elastic_zone(servers, **policy),)
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=600.0,
        tariffs=(Tariff(name="flat", micros_per_kwh=(0,) * HOURS_PER_DAY),),
        zones=(*zones, _lending_zone(lendable, gpu_type)) if lendable else zones,
    )


def _lending_zone(servers: int, gpu_type: str) -> Zone:
    return Zone(
        id=LENDER,
        base_model="any",
        base_model_memory_gib=0.5,
        gpu_types=GPU_TYPES,
        nodes=tuple(Node(id=f"i{number}", gpu_type=gpu_type, tariff="flat") for number in range(servers)),
        policy=InferencePolicy(),
        lending=Lending(headroom=0.0, notice_s=NOTICE_S, borrowers=(Borrower(zone=ZONE),)),
    )


def elastic_zone(servers: int = 2, id: str = ZONE, **policy: Any) -> Zone:
    return Zone(
        id=id,
        base_model="any",
        base_model_memory_gib=0.5,
        gpu_types=GPU_TYPES,
        nodes=tuple(Node(id=f"s{number}", gpu_type="V100", tariff="flat") for number in range(servers)),
        policy=ElasticPolicy(reference_gpu_type="V100", **policy),
    )


def workload(work_s: float = 600.0, workers: tuple[int, int] = (1, 1), **fields: Any) -> ElasticWorkload:
    """A job that takes one worker so many seconds, at a sample per second."""
    return ElasticWorkload(
        work_samples=int(work_s),
        dataset=Dataset(path="data.jsonl", samples=100),
        hyperparameters=TrainingHyperparameters(global_batch_size=max(64, workers[1])),
        min_workers=workers[0],
        max_workers=workers[1],
        **{"model": "models/tiny", "samples_per_s": 1.0, **fields},
    )


def submit(
    job_id: str, work_s: float = 600.0, workers: tuple[int, int] = (1, 1), user: str = "ann", **fields: Any
) -> JobSubmitted:
    return JobSubmitted(
        cell=CELL,
        job_id=job_id,
        user=user,
        zone=ZONE,
        workload=workload(work_s, workers, **fields),
        terms=ElasticTerms(),
    )


def withdraw(job_id: str, user: str = "ann") -> JobWithdrawalRequested:
    return JobWithdrawalRequested(cell=CELL, job_id=job_id, user=user)


def tick(time_s: float) -> ClockTicked:
    return ClockTicked(cell=CELL, time_s=time_s)


def _place(command: WorkersAssigned) -> dict[str, Any]:
    return {"cell": CELL, "node": command.node, "run_id": command.run_id, "job_id": command.job_id}


def started(command: WorkersAssigned, samples_done: int | None = None) -> RunStarted:
    done = command.resume_samples if samples_done is None else samples_done
    return RunStarted(**_place(command), samples_done=done)


def progressed(command: WorkersAssigned, samples_done: int, complete: bool = False) -> RunProgressed:
    return RunProgressed(**_place(command), samples_done=samples_done, node_s=0.0, complete=complete)


def finished(command: WorkersAssigned) -> RunFinished:
    return RunFinished(**_place(command), samples_done=command.workload.work_samples)


def failed(command: WorkersAssigned, permanent: bool = False, error: str = "out of memory") -> RunFailed:
    return RunFailed(**_place(command), samples_done=0, error=error, permanent=permanent)


def gone(command: WorkersReleased, samples_done: int = 0) -> RunProgressed:
    """The workers of a generation have left a node."""
    return RunProgressed(
        cell=CELL,
        node=command.node,
        run_id=f"{command.generation}/{command.job_id}",
        job_id=command.job_id,
        samples_done=samples_done,
        node_s=0.0,
        complete=True,
    )


class ObedientNodes:
    """Nodes' reports to each command, which the caller sends one by one, when it likes, in the order in which
    each node makes them."""

    def __init__(self) -> None:
        self.due: dict[str, deque[FleetEvent]] = {}
        """By node."""
        self.leading: dict[str, WorkersAssigned] = {}
        """The newest command to the leader of each job that runs."""
        self.lost: set[str] = set()
        """Nodes that obey nothing."""

    def obey(self, outcomes: list[Outcome]) -> None:
        """Take commands on."""
        for command in outcomes:
            if isinstance(command, Command) and command.node in self.lost:
                continue
            if isinstance(command, WorkersAssigned):
                self._publish(started(command))
                if command.members[0].node == command.node:
                    self.leading[command.job_id] = command
            elif isinstance(command, NodeMoved) and command.to_zone == ZONE:
                self._publish(
                    NodeOnline(cell=CELL, node=command.node, base_model="any", runners=("elastic",))
                )
            elif isinstance(command, WorkersReleased):
                self._publish(gone(command))
                if command.reason != "scaled_in":
                    self.leading.pop(command.job_id, None)

    def end(self, job_id: str) -> None:
        """A job's work is done."""
        leader = self.leading.pop(job_id)
        self._publish(finished(leader))
        for member in leader.members[1:]:
            other = leader.model_copy(update={"node": member.node})
            self._publish(progressed(other, leader.workload.work_samples, complete=True))

    def lose(self, node: str) -> None:
        """Lose a node, with all of its reports that are not sent."""
        self.lost.add(node)
        self.due.pop(node, None)
        for job_id, command in list(self.leading.items()):
            if any(member.node == node for member in command.members):
                del self.leading[job_id]

    def next_report(self, node: str) -> FleetEvent:
        """Return a node's next report."""
        report = self.due[node].popleft()
        if not self.due[node]:
            del self.due[node]
        return report

    def _publish(self, report: FleetEvent) -> None:
        self.due.setdefault(report.node, deque()).append(report)


def commands(outcomes: list[Outcome]) -> list[Command]:
    return [outcome for outcome in outcomes if isinstance(outcome, Command)]
