"""Nodes with the runner `moe`, without a broker, on one machine and one shared disk."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from executors.moe.runner import MoeRunner
from executors.moe.settings import MoeSettings
from schemas.experts.commands import (
    ExpertsPlaced,
    LayerPlacement,
    MoeWorkload,
    RankMember,
    RanksAssigned,
    RanksReleased,
    RanksReleaseReason,
)
from schemas.experts.workload import MoeServeWorkload, MoeTrainWorkload
from schemas.fleet import RunReport, RunStarted
from tests.support.nodes import Members, Node, Nodes, is_end

MODEL = "experts"
DENSE = "dense"
PROMPTS = "prompts.jsonl"
EXPERTS = 4
LAYERS = 2


def service(ranks: int = 2, requests: dict[str, Any] | None = None, **fields: Any) -> MoeServeWorkload:
    """A service of the tiny model."""
    chosen = {"dataset": {"path": PROMPTS, "samples": 24}, "most": 60} | (requests or {})
    values = {
        "model": MODEL,
        "requests": chosen,
        "ranks": ranks,
        "profile_batches": 4,
        "batch_size": 6,
        "sequence_length": 24,
    }
    return MoeServeWorkload.model_validate_json(json.dumps(values | fields))


def training(ranks: int = 2, work_samples: int = 60, **fields: Any) -> MoeTrainWorkload:
    """A job that makes experts of the tiny dense model, and trains them."""
    values = {
        "work_samples": work_samples,
        "model": DENSE,
        "conversion": {"experts": EXPERTS, "noise": 0.5},
        "dataset": {"path": PROMPTS, "samples": 24},
        "gating": {"mode": "adaptive", "threshold": 0.1},
        "ranks": ranks,
    }
    hyperparameters = {
        "global_batch_size": 6,
        "sequence_length": 24,
        "learning_rate": 1e-3,
        **fields.pop("hyperparameters", {}),
    }
    return MoeTrainWorkload.model_validate_json(
        json.dumps(values | {"hyperparameters": hyperparameters} | fields)
    )


@dataclass
class Fleet(Nodes[MoeRunner, MoeSettings]):
    """Nodes with the runner `moe`."""

    EXECUTOR: ClassVar = {"runners": ("moe",)}

    def add(self, name: str, gpus: int = 2, **settings: object) -> Node[MoeRunner]:
        """Start a node."""
        return self.begin(name, MoeRunner, gpus, **settings)

    def assign(
        self,
        job_id: str,
        members: Members,
        work: MoeWorkload,
        *,
        generation: int = 1,
        resume_samples: int = 0,
        report_interval_s: float = 0.2,
        placement: Sequence[LayerPlacement] = (),
        only: Sequence[str] | None = None,
    ) -> None:
        """Send a generation's command to its members, or to some of them."""
        for name, _ in members:
            if only is None or name in only:
                command = assigned(
                    name,
                    job_id,
                    members,
                    work,
                    generation=generation,
                    resume_samples=resume_samples,
                    report_interval_s=report_interval_s,
                    revision=1 if placement else 0,
                    placement=tuple(placement),
                )
                self.send(command)

    def place(self, job_id: str, revision: int, layers: Sequence[LayerPlacement]) -> None:
        """Send a placement of experts to all nodes."""
        for name in self.nodes:
            command = ExpertsPlaced(
                zone="z", node=name, job_id=job_id, generation=1, revision=revision, layers=tuple(layers)
            )
            self.send(command)

    def release(self, job_id: str, reason: RanksReleaseReason = "ended", generation: int = 1) -> None:
        """Take a job from all nodes."""
        for name in self.nodes:
            command = RanksReleased(zone="z", node=name, job_id=job_id, generation=generation, reason=reason)
            self.send(command)

    def has_begun(self, job_id: str, *names: str) -> Callable[[], bool]:
        """Whether each of these nodes has reported that the job has."""
        return lambda: {report.node for report in self.reports(RunStarted, job_id)} >= set(names)

    def is_over(self, job_id: str, *names: str, generation: int = 1) -> Callable[[], bool]:
        """Whether each of these nodes has reported the end of a generation."""
        run_id = f"{generation}/{job_id}"
        return lambda: (
            {
                report.node
                for report in self.reports(RunReport, job_id)
                if report.run_id == run_id and is_end(report)
            }
            >= set(names)
        )

    @property
    def expert_bytes(self) -> int:
        """Return the bytes of the parameters of an expert that is made of the tiny dense model."""
        config = json.loads((self.settings.model_root / DENSE / "config.json").read_text())
        return 4 * 3 * int(config["hidden_size"]) * int(config["intermediate_size"])

    def checkpoints(self, job_id: str) -> list[Path]:
        """Return the checkpoints of a job, the oldest first."""
        found = self.checkpoint_folder(job_id).glob("[0-9]*-*")
        return sorted(found, key=lambda path: int(path.name.partition("-")[2]))

    def pids(self, node: str) -> list[int]:
        """Return the process ids of a node's ranks."""
        jobs = self.nodes[node].runner.assignments
        return [pid for job in jobs for pid in job.processes.pids]


def assigned(
    node: str, job_id: str, members: Members, work: MoeWorkload, *, generation: int = 1, **fields: Any
) -> RanksAssigned:
    """Return the command to one member of a generation."""
    return RanksAssigned(
        zone="z",
        node=node,
        run_id=f"{generation}/{job_id}",
        job_id=job_id,
        user="u",
        generation=generation,
        members=tuple(RankMember(node=name, ranks=ranks) for name, ranks in members),
        workload=work,
        **{"resume_samples": 0, "report_interval_s": 0.2} | fields,
    )
