"""The work of a rank: data-parallel training of a line, with checkpoints."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from executors.gang.batches import share
from executors.gang.checkpoints import MODEL_TENSORS, JobResult, Position, State
from executors.gang.group import ProcessGroup
from executors.gang.rank import run_rank_process
from executors.gang.replicated import ReplicatedTraining
from tests.small_gang.runner import LineOrder

BATCH_SIZE = 8
LEARNING_RATE = 0.1
LINE = "line.json"


def run_rank(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Run one rank until it ends."""
    run_rank_process(LineOrder, LineTraining, order_json, connection)


@dataclass(frozen=True)
class Points:
    """A rank's part of a batch."""

    x: Tensor

    @property
    def loss_tokens(self) -> int:
        return len(self.x)


class LineTraining(ReplicatedTraining[LineOrder, Points]):
    """Fits weights to y = 3 x + 1 by least squares."""

    position = Position()

    def prepare(self) -> None:
        self._weights = torch.zeros(2)

    def move_to(self, position: Position) -> None:
        self.position = position

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
        time.sleep(self.rank.order.workload.step_s)

    def tensors(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {MODEL_TENSORS: {"weights": self._weights}}

    def result(self, state: State) -> JobResult:
        return JobResult({"": {LINE: json.dumps(state[MODEL_TENSORS]["weights"].tolist()).encode()}})
