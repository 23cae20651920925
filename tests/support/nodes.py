"""Nodes with one runner, without a broker, on one machine and one shared disk."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from executors.node.process import SystemClock
from executors.node.room import DiskSpace
from executors.node.runner import Runner, RunnerContext
from executors.node.settings import ExecutorSettings
from executors.settings import GangSettings
from schemas.commands import Command
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport
from schemas.merging.reports import TaskProfiled

CELL = "c"
WAIT_S = 60.0
_TURN_S = 0.005

Members = Sequence[tuple[str, int]]
T = TypeVar("T", bound=Runner)
S = TypeVar("S", bound=GangSettings)
R = TypeVar("R", bound=RunReport)


@dataclass
class Node(Generic[T]):
    """One node, as its process sees it."""

    name: str
    runner: T
    reports: list[RunReport] = field(default_factory=list)


@dataclass
class Nodes(Generic[T, S]):
    """Nodes that share a disk; each gets the commands that a cell would send it."""

    EXECUTOR: ClassVar[dict[str, Any]]
    """Settings of their executors: `runners`, at least."""

    root: Path
    settings: S
    nodes: dict[str, Node[T]] = field(default_factory=dict)

    def context(self, name: str, reports: list[RunReport]) -> RunnerContext:
        """Return the context of a node's runner."""
        return RunnerContext(
            ExecutorSettings(
                cell=CELL,
                node=name,
                output_root=self.root / "output",
                state_root=self.root / "state",
                **self.EXECUTOR,
            ),
            reports.append,
            DiskSpace({"state root": self.root, "output root": self.root}, least_free_bytes=0),
            SystemClock(),
        )

    def begin(
        self, name: str, start: Callable[[RunnerContext, S, int], T], gpus: int, **settings: Any
    ) -> Node[T]:
        """Start a node, whose settings differ from the others' in these."""
        reports: list[RunReport] = []
        runner = start(self.context(name, reports), self.settings.model_copy(update=settings), gpus)
        self.nodes[name] = Node(name, runner, reports)
        return self.nodes[name]

    def send(self, command: Command) -> None:
        """Send a command to its node."""
        runner = self.nodes[command.node].runner
        objection = runner.validate(command)
        # As the node does: what is to end may have ended.
        assert objection is None or objection.kind == "unknown_run", objection
        runner.apply(command)

    def until(self, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        """Advance the nodes until a condition holds."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"in vain for {timeout_s} s: {self.short_reports()[-20:]}"
            self.turn()

    def turn(self) -> None:
        """Run each node's loop once."""
        for node in self.nodes.values():
            node.runner.advance()
        self.rest()

    def rest(self) -> None:
        """Let their processes run for a moment."""
        time.sleep(_TURN_S)

    def reports(self, kind: type[R], job_id: str | None = None, node: str | None = None) -> list[R]:
        """Reports of one kind, of a job and a node if named."""
        return [
            report
            for name, each in self.nodes.items()
            for report in each.reports
            if isinstance(report, kind) and job_id in (None, report.job_id) and node in (None, name)
        ]

    def short_reports(self, job_id: str | None = None) -> list[str]:
        """Return all reports in a short form."""
        return [short(report) for report in self.reports(RunReport, job_id)]

    def result(self, job_id: str) -> Path:
        """Return the folder of a job's result."""
        return self.root / "output" / CELL / "u" / job_id

    def checkpoint_folder(self, job_id: str) -> Path:
        """Where the checkpoints of a job are."""
        return self.root / "state" / CELL / "checkpoints" / job_id

    def checkpoints(self, job_id: str) -> list[str]:
        """Return what the store has of a job."""
        return sorted(path.name for path in self.checkpoint_folder(job_id).glob("*"))

    def close(self) -> None:
        """Stop all nodes."""
        for node in self.nodes.values():
            node.runner.close("node_stops")


def is_end(report: RunReport) -> bool:
    """Whether nothing of the run is on the node any more."""
    if isinstance(report, RunProgressed):
        return report.complete
    return isinstance(report, RunFinished | RunFailed | TaskProfiled)


def short(report: RunReport) -> str:
    """A report in one line."""
    what = report.TYPE.removeprefix("millrace.").removesuffix(".v1")
    extra = ""
    if isinstance(report, RunProgressed):
        extra = " complete" if report.complete else ""
    if isinstance(report, RunFailed):
        extra = f" permanent={report.permanent} {report.error}"
    return f"{report.node} {report.run_id} {what} {report.samples_done}{extra}"
