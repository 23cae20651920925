"""The part of a node that its gangs use."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from executors.gang.messages import Membership, RankOrder
from executors.node.run_reports import IdentifiedRun, RunReports
from executors.node.runner import Clock, RunnerContext
from executors.settings import GangSettings
from schemas.fleet import FleetEvent

S = TypeVar("S", bound=GangSettings)
Order = TypeVar("Order", bound=RankOrder[Any])


class Assignment(Protocol):
    """Command by which a node gets ranks of a job in one generation."""

    @property
    def node(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def resume_samples(self) -> int: ...
    @property
    def workload(self) -> Any: ...


@dataclass(frozen=True)
class GangNode(Generic[S]):
    """Ids, folders, settings, clock and free GPUs that gangs use."""

    cell: str
    node: str
    state_root: Path
    output_root: Path
    settings: S
    clock: Clock
    report: Callable[[FleetEvent], None]
    gpus: int
    free_gpus: list[int]
    """GPUs that no process uses, in order."""

    @classmethod
    def of(cls, context: RunnerContext, settings: S, gpus: int) -> Self:
        """Return a node with room for one rank per GPU."""
        node = context.settings
        return cls(
            cell=node.cell,
            node=node.node,
            state_root=node.state_root,
            output_root=node.output_root,
            settings=settings,
            clock=context.clock,
            report=context.report,
            gpus=gpus,
            free_gpus=list(range(gpus)),
        )

    def reports_of(self, run: IdentifiedRun) -> RunReports:
        """Return the reports of a run, or of its command."""
        return RunReports(self.cell, self.node, run, self.report)

    def order(self, kind: type[Order], command: Assignment, membership: Membership, gpu: int) -> Order:
        """Return the order of a rank: its fields are those of the command, the settings and this node."""
        fields: dict[str, Any] = {}
        for source in (self, self.settings, command):
            fields |= {name: getattr(source, name) for name in kind.model_fields if hasattr(source, name)}
        return kind(**fields, membership=membership, gpu=gpu)
