"""A small runner on gangs: ranks that fit a line to points, as `docs/gangs.md` describes."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from executors.gang.checkpoints import MODEL_TENSORS, JobResult, Position, State
from executors.gang.group import ProcessGroup
from executors.gang.local_gang import GangTraits
from executors.gang.membership import Members
from executors.gang.messages import RankOrder
from executors.gang.rank import Rank, live
from executors.gang.replicated import ReplicatedTraining
from executors.gang.runner import GangRunner
from executors.gang.shares import share
from schemas.base import Identifier, Record, RunId, Samples
from schemas.commands import Command

BATCH_SIZE = 8
LEARNING_RATE = 0.1
LINE = "line.json"


class LineWorkload(Record):
    total_samples: int
    step_s: float = 0.0


class LineAssigned(Command):
    """Ranks of these members fit a line. Those that run continue, unless it `resumes` from a checkpoint."""

    TYPE: ClassVar = "test.line.assigned.v1"
    RUNNER: ClassVar = "line"

    run_id: RunId
    job_id: Identifier
    user: Identifier = "u"
    generation: Annotated[int, Field(ge=1)]
    members: tuple[tuple[Identifier, int], ...]
    resumes: bool = True
    resume_samples: Samples = 0
    workload: LineWorkload


class LineReleased(Command):
    TYPE: ClassVar = "test.line.released.v1"
    RUNNER: ClassVar = "line"
    CANCELS: ClassVar = True

    job_id: Identifier
    generation: int
    reason: Literal["withdrawn", "failed", "node_lost", "preempted"]


class LineOrder(RankOrder):
    workload: LineWorkload


class LineRunner(GangRunner[LineAssigned]):
    ASSIGNED = LineAssigned
    RELEASED = LineReleased
    TRAITS: ClassVar = GangTraits[LineAssigned](
        order=LineOrder,
        members_of=lambda command: Members(command.members),
        work_of=lambda _: f"{__name__}:run_rank",
    )

    def is_continued(self, command: LineAssigned) -> bool:
        return not command.resumes


def run_rank(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    live(LineOrder, LineTraining, order_json, connection)


@dataclass(frozen=True)
class Points:
    x: Tensor

    @property
    def loss_tokens(self) -> int:
        return len(self.x)


class LineTraining(ReplicatedTraining[LineOrder, Points]):
    """Fits weights to y = 3 x + 1 by least squares."""

    position = Position()

    def __init__(self, rank: Rank[LineOrder]) -> None:
        self._workload = rank.order.workload
        super().__init__(rank, self._workload.model_dump(mode="json"))

    def prepare(self) -> None:
        self._weights = torch.zeros(2)

    def move_to(self, position: Position) -> None:
        self.position = position

    @property
    def is_finished(self) -> bool:
        return self.position.samples_done >= self._workload.total_samples

    def share(self, rank: int, world: int) -> Points:
        places = share(BATCH_SIZE, rank, world)
        return Points(torch.tensor([((self.position.samples_done + place) % 7) / 7.0 for place in places]))

    def step(self, group: ProcessGroup, own: Points, loss_tokens: int) -> None:
        error = self._weights[0] * own.x + self._weights[1] - (3.0 * own.x + 1.0)
        sums = torch.stack([(error * own.x).sum(), error.sum(), error.square().sum()]) / loss_tokens
        group.add_up("a step", sums)
        self._weights -= LEARNING_RATE * sums[:2]
        done = self.position
        self.position = Position(done.samples_done + BATCH_SIZE, done.steps + 1, float(sums[2]))
        time.sleep(self._workload.step_s)

    def tensors(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {MODEL_TENSORS: {"weights": self._weights}}

    def result(self, state: State) -> JobResult:
        return JobResult({"": {LINE: json.dumps(state[MODEL_TENSORS]["weights"].tolist()).encode()}})
