"""What the jobs of a node share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from executors.gang.membership import Membership
from executors.gang.messages import RankOrder
from executors.gang.settings import JobSettings
from executors.node.runner import Clock, RunnerContext
from schemas.fleet import FleetEvent

S = TypeVar("S", bound=JobSettings)
Order = TypeVar("Order", bound=RankOrder)


class Assignment(Protocol):
    """The command by which a node has processes of a job in one generation."""

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


@dataclass(frozen=True)
class GangNode(Generic[S]):
    """What the jobs of a node share."""

    called: str
    """What a process of a job is called: a worker, or a rank."""
    cell: str
    node: str
    state_root: Path
    output_root: Path
    settings: S
    clock: Clock
    report: Callable[[FleetEvent], None]
    gpus: int
    free_gpus: list[int]
    """Not in use by any process, in order."""

    @classmethod
    def of(cls, context: RunnerContext, settings: S, gpus: int, called: str) -> Self:
        """That of a node with room for so many processes, each with a GPU."""
        node = context.settings
        return cls(
            called=called,
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

    def order(
        self, kind: type[Order], command: Assignment, membership: Membership, gpu: int, **others: Any
    ) -> Order:
        """What a process of a job is told when it begins: this, and what its kind of order has besides."""
        return kind(
            cell=self.cell,
            node=self.node,
            job_id=command.job_id,
            user=command.user,
            membership=membership,
            resume_samples=command.resume_samples,
            state_root=self.state_root,
            output_root=self.output_root,
            gpu=gpu,
            **self.settings.model_dump(include=set(kind.model_fields)),
            **others,
        )
