"""Nodes with the runner `tuner`, without a broker, on one machine and one shared disk."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import load_file
from torch import Tensor

from executors.tuner.runner import TunerRunner
from executors.tuner.settings import TunerSettings
from schemas.fleet import RunReport
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
from schemas.merging.workload import TrainingTarget, TuningHyperparameters, TuningWorkload
from tests.support.nodes import Members, Node, Nodes, is_end

MODEL = "tiny"
DATASET = "pairs.jsonl"
VALIDATION = "held-back.jsonl"


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
            "target": TrainingTarget(accuracy=accuracy, most_iterations=iterations),
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
    members: Members = (("n1", 1),),
    watched_epochs: int = 2,
) -> TaskAssigned:
    """Return the command to one member of a task."""
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
    """Return the command to a node whose task is to end."""
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
class Fleet(Nodes[TunerRunner, TunerSettings]):
    """Nodes with the runner `tuner`."""

    EXECUTOR: ClassVar = {"runners": ("tuner",), "base_model": MODEL}

    def add(self, name: str, gpus: int = 1, state: Any = None, **settings: object) -> Node[TunerRunner]:
        """Start a node, which goes on from a journal if there is one."""
        node = self.begin(name, TunerRunner.started, gpus, **settings)
        if state is not None:
            node.runner.restore(state)
        return node

    def assign(
        self,
        *orders: JobOrder,
        mode: TransferMode = "normal",
        generation: int = 1,
        members: Members = (("n1", 1),),
        **fields: Any,
    ) -> None:
        """Send a task's command to its members."""
        for name, _ in members:
            self.send(assigned(name, *orders, mode=mode, generation=generation, members=members, **fields))

    def until_over(self, *run_ids: str) -> None:
        """Let the nodes turn until the ends of these runs are reported, and nothing is left to do."""
        self.until(lambda: all(any(self.ends(run_id)) for run_id in run_ids))
        self.until(lambda: all(node.runner.state() is None for node in self.nodes.values()))

    def ends(self, run_id: str) -> Iterator[RunReport]:
        """The reports that end a run."""
        return (report for report in self.reports(RunReport) if report.run_id == run_id and is_end(report))

    def adapter(self, job_id: str) -> dict[str, Tensor]:
        """Return the adapter of a finished job."""
        return load_file(self.result(job_id) / "adapter_model.safetensors")


def write_lines(path: Path, records: Sequence[dict[str, str]]) -> None:
    """Write a JSONL file."""
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
