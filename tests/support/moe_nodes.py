"""Nodes with the runner `moe`, without a broker, on one machine and one shared disk."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from executors.moe.runner import MoeRunner
from executors.moe.settings import MoeSettings
from executors.node.process import SystemClock
from executors.node.room import Room
from executors.node.runner import RunnerContext
from executors.node.settings import ExecutorSettings
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
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted

CELL = "c"
MODEL = "experts"
DENSE = "dense"
PROMPTS = "prompts.jsonl"
EXPERTS = 4
LAYERS = 2
_WAIT_S = 60.0

Members = Sequence[tuple[str, int]]
R = TypeVar("R", bound=RunReport)


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
class Node:
    """One node, as its process sees it."""

    name: str
    runner: MoeRunner
    reports: list[RunReport] = field(default_factory=list)


@dataclass
class Fleet:
    """Nodes that share a disk; each gets the commands that a cell would send it."""

    root: Path
    settings: MoeSettings
    nodes: dict[str, Node] = field(default_factory=dict)

    def add(self, name: str, gpus: int = 2, **settings: object) -> Node:
        """Start a node."""
        reports: list[RunReport] = []
        context = RunnerContext(
            ExecutorSettings(
                cell=CELL,
                node=name,
                runners=("moe",),
                output_root=self.root / "output",
                state_root=self.root / "state",
            ),
            reports.append,
            Room({"state root": self.root, "output root": self.root}, least_free_bytes=0),
            SystemClock(),
        )
        runner = MoeRunner(context, self.settings.model_copy(update=settings), gpus)
        self.nodes[name] = Node(name, runner, reports)
        return self.nodes[name]

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
        """Tell the members of a generation, or some of them."""
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
                assert self.nodes[name].runner.judge(command) is None
                self.nodes[name].runner.apply(command)

    def place(self, job_id: str, revision: int, layers: Sequence[LayerPlacement]) -> None:
        """Tell all nodes where experts stand."""
        for name, node in self.nodes.items():
            command = ExpertsPlaced(
                zone="z", node=name, job_id=job_id, generation=1, revision=revision, layers=tuple(layers)
            )
            assert node.runner.judge(command) is None
            node.runner.apply(command)

    def release(self, job_id: str, reason: RanksReleaseReason = "ended", generation: int = 1) -> None:
        """Take a job from all nodes."""
        for name, node in self.nodes.items():
            command = RanksReleased(zone="z", node=name, job_id=job_id, generation=generation, reason=reason)
            assert node.runner.judge(command) is None
            node.runner.apply(command)

    def until(self, condition: Callable[[], object], timeout_s: float = _WAIT_S) -> None:
        """Let the nodes turn until something is so."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"in vain for {timeout_s} s: {self.told()}"
            for node in self.nodes.values():
                node.runner.advance()
            time.sleep(0.005)

    def told(self) -> list[str]:
        """All reports, in short."""
        return [short(report) for node in self.nodes.values() for report in node.reports]

    def reports(self, kind: type[R], job_id: str | None = None) -> list[R]:
        """Reports of one kind, of a job if named."""
        return [
            report
            for node in self.nodes.values()
            for report in node.reports
            if isinstance(report, kind) and job_id in (None, report.job_id)
        ]

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
        """Of the parameters of an expert that is made of the tiny dense model."""
        config = json.loads((self.settings.model_root / DENSE / "config.json").read_text())
        return 4 * 3 * int(config["hidden_size"]) * int(config["intermediate_size"])

    def result(self, job_id: str) -> Path:
        """What a job leaves."""
        return self.root / "output" / CELL / "u" / job_id

    def checkpoints(self, job_id: str) -> list[Path]:
        """Those of a job, the oldest first."""
        folder = self.root / "state" / CELL / "checkpoints" / job_id
        return sorted(folder.glob("[0-9]*-*"), key=lambda path: int(path.name.partition("-")[2]))

    def pids(self, node: str) -> list[int]:
        """Of a node's ranks."""
        jobs = self.nodes[node].runner._jobs.present.values()
        return [pid for job in jobs for pid in job.processes.pids]

    def close(self) -> None:
        """Stop all nodes."""
        for node in self.nodes.values():
            node.runner.close("node_stops")


def is_end(report: RunReport) -> bool:
    """Whether nothing of the run is on the node any more."""
    if isinstance(report, RunProgressed):
        return report.complete
    return isinstance(report, RunFinished | RunFailed)


def short(report: RunReport) -> str:
    """A report in one line."""
    what = report.TYPE.removeprefix("millrace.").removesuffix(".v1")
    extra = f" permanent={report.permanent} {report.error}" if isinstance(report, RunFailed) else ""
    if isinstance(report, RunProgressed) and report.complete:
        extra = " complete"
    return f"{report.node} {report.run_id} {what} {report.samples_done}{extra}"


def assigned(
    node: str, job_id: str, members: Members, work: MoeWorkload, *, generation: int = 1, **fields: Any
) -> RanksAssigned:
    """What one member of a generation is told."""
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
