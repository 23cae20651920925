"""Nodes with the runner `tuner`, without a broker, on one machine and one shared disk."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from executors.node.process import SystemClock
from executors.node.room import Room
from executors.node.runner import RunnerContext
from executors.node.settings import ExecutorSettings
from executors.tuner.runner import TunerRunner
from executors.tuner.settings import TunerSettings
from schemas.commands import Command
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport
from schemas.lora import Dataset
from schemas.merging.commands import (
    JobOrder,
    ProfileOrdered,
    TaskAssigned,
    TaskMember,
    TaskReleased,
    TaskReleaseReason,
    TransferMode,
)
from schemas.merging.reports import ProfileReported
from schemas.merging.workload import Target, TuningHyperparameters, TuningWorkload

CELL = "c"
MODEL = "tiny"
DATASET = "pairs.jsonl"
VALIDATION = "held-back.jsonl"
_WAIT_S = 60.0


def workload(
    iterations: int = 20,
    *,
    dataset: str = DATASET,
    validation: str | None = VALIDATION,
    accuracy: float | None = None,
    hyperparameters: dict[str, object] | None = None,
    **fields: object,
) -> TuningWorkload:
    """A job of the tiny model with batches of six sequences."""
    chosen = {"rank": 4, "batch_size": 6, "sequence_length": 24, "learning_rate": 1e-2} | (
        hyperparameters or {}
    )
    return TuningWorkload.model_validate(
        {
            "model": MODEL,
            "dataset": Dataset(path=dataset, samples=48),
            "validation_path": validation,
            "hyperparameters": TuningHyperparameters.model_validate(chosen),
            "target": Target(accuracy=accuracy, most_iterations=iterations),
        }
        | fields
    )


def order(
    job_id: str, work: TuningWorkload | None = None, generation: int = 1, resume_iterations: int = 0
) -> JobOrder:
    """A job of a task of this generation."""
    return JobOrder(
        run_id=f"{job_id}/{generation}",
        job_id=job_id,
        user="u",
        workload=work or workload(),
        resume_iterations=resume_iterations,
    )


def assigned(
    node: str,
    *orders: JobOrder,
    mode: TransferMode = "normal",
    generation: int = 1,
    members: Sequence[tuple[str, int]] = (("n1", 1),),
    watched_epochs: int = 2,
) -> TaskAssigned:
    """What one member of a task is told."""
    return TaskAssigned(
        zone="z",
        node=node,
        task_id="-".join(each.job_id for each in orders),
        generation=generation,
        mode=mode,
        orders=orders,
        members=tuple(TaskMember(node=name, gpus=gpus) for name, gpus in members),
        watched_epochs=watched_epochs,
    )


def released(
    node: str, *job_ids: str, generation: int = 1, reason: TaskReleaseReason = "preempted"
) -> TaskReleased:
    """What a node is told whose task is to end."""
    return TaskReleased(
        zone="z",
        node=node,
        task_id="-".join(job_ids),
        generation=generation,
        job_ids=job_ids,
        reason=reason,
    )


def profile_of(node: str, job: JobOrder, **fields: Any) -> ProfileOrdered:
    """A profile run of a job."""
    chosen: dict[str, Any] = {"gpus": 1, "iterations": 5, "limit_s": 30.0, "fisher_samples": 8} | fields
    return ProfileOrdered(zone="z", node=node, order=job, **chosen)


@dataclass
class Node:
    """One node, as its process sees it."""

    name: str
    runner: TunerRunner
    reports: list[RunReport] = field(default_factory=list)


@dataclass
class Fleet:
    """Nodes that share a disk."""

    root: Path
    settings: TunerSettings
    nodes: dict[str, Node] = field(default_factory=dict)

    def context(self, name: str, reports: list[RunReport]) -> RunnerContext:
        """What a node is given."""
        return RunnerContext(
            ExecutorSettings(
                cell=CELL,
                node=name,
                runners=("tuner",),
                base_model=MODEL,
                output_root=self.root / "output",
                state_root=self.root / "state",
            ),
            reports.append,
            Room({"state root": self.root, "output root": self.root}, least_free_bytes=0),
            SystemClock(),
        )

    def add(self, name: str, gpus: int = 1, state: Any = None, **settings: object) -> Node:
        """Start a node, which goes on from a journal if there is one."""
        reports: list[RunReport] = []
        changed = self.settings.model_copy(update=settings)
        runner = TunerRunner.started(self.context(name, reports), changed, gpus)
        if state is not None:
            runner.restore(state)
        self.nodes[name] = Node(name, runner, reports)
        return self.nodes[name]

    def tell(self, command: Command) -> None:
        """Send a command to its node."""
        runner = self.nodes[command.node].runner
        assert runner.judge(command) is None
        runner.apply(command)

    def assign(
        self,
        *orders: JobOrder,
        mode: TransferMode = "normal",
        generation: int = 1,
        members: Sequence[tuple[str, int]] = (("n1", 1),),
        **fields: Any,
    ) -> None:
        """Tell the members of a task."""
        for name, _ in members:
            self.tell(assigned(name, *orders, mode=mode, generation=generation, members=members, **fields))

    def until(self, condition: Callable[[], object], timeout_s: float = _WAIT_S) -> None:
        """Let the nodes turn until something is so."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"in vain for {timeout_s} s: {self.told()[-20:]}"
            self.turn()

    def turn(self) -> None:
        """One turn of each node's loop."""
        for node in self.nodes.values():
            node.runner.advance()
        time.sleep(0.005)

    def until_over(self, *run_ids: str) -> None:
        """Let the nodes turn until the ends of these runs are reported, and nothing is left to do."""
        self.until(lambda: all(any(self.ends(run_id)) for run_id in run_ids))
        self.until(lambda: all(node.runner.state() is None for node in self.nodes.values()))

    def ends(self, run_id: str) -> Iterator[RunReport]:
        """The reports that end a run."""
        for report in self.reports(RunReport):
            is_end = isinstance(report, RunFinished | RunFailed | ProfileReported) or (
                isinstance(report, RunProgressed) and report.complete
            )
            if report.run_id == run_id and is_end:
                yield report

    def reports(self, kind: type[RunReport], job_id: str | None = None) -> list[Any]:
        """Reports of one kind, of a job if named."""
        return [
            report
            for node in self.nodes.values()
            for report in node.reports
            if isinstance(report, kind) and job_id in (None, report.job_id)
        ]

    def told(self, job_id: str | None = None) -> list[str]:
        """All reports, in short."""
        return [short(report) for report in self.reports(RunReport, job_id)]

    def adapter(self, job_id: str) -> dict[str, Tensor]:
        """What a finished job has left."""
        return load_file(self.root / "output" / CELL / "u" / job_id / "adapter_model.safetensors")

    def checkpoints(self, job_id: str) -> list[str]:
        """What the store has of a job."""
        return sorted(path.name for path in (self.root / "state" / CELL / "checkpoints" / job_id).glob("*"))

    def close(self) -> None:
        """Stop all nodes."""
        for node in self.nodes.values():
            node.runner.close("node_stops")


def short(report: RunReport) -> str:
    """A report in one line."""
    what = report.TYPE.removeprefix("millrace.").removesuffix(".v1")
    extra = ""
    if isinstance(report, RunProgressed):
        extra = " complete" if report.complete else ""
    if isinstance(report, RunFailed):
        extra = f" permanent={report.permanent} {report.error}"
    return f"{report.node} {report.run_id} {what} {report.samples_done}{extra}"


def write_lines(path: Path, records: Sequence[dict[str, str]]) -> None:
    """Write a JSONL file."""
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
