"""Ranks of an elastic job as threads of this process, whose group adds up and spreads in memory."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from executors.elastic.rank import DataParallelTraining
from executors.elastic.runner import ElasticOrder
from executors.gang.group import ProcessGroup
from executors.gang.inbox import Inbox
from executors.gang.messages import Membership
from executors.gang.rank import GangRank
from schemas.elastic.workload import ElasticWorkload

T = TypeVar("T")
_WAIT_S = 60.0


class Board:
    """Contributions of all threads to a collective."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._barrier = threading.Barrier(world, timeout=_WAIT_S)
        self._rows: list[object] = [None] * world

    def exchange(self, rank: int, mine: T) -> list[T]:
        """Return the contributions of all ranks."""
        self._rows[rank] = mine
        self._barrier.wait()
        rows = cast(list[T], list(self._rows))
        self._barrier.wait()
        return rows


class ThreadGroup:
    """The collectives of `ProcessGroup` that a step needs, among threads."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self.rank, self.world = board, rank, board.world

    def gather(self, where: str, numbers: Sequence[int]) -> list[list[int]]:
        return self._board.exchange(self.rank, list(numbers))

    def add_up(self, where: str, vector: Tensor) -> None:
        vector.copy_(torch.stack(self._board.exchange(self.rank, vector.clone())).sum(0))

    def spread(self, where: str, tensors: Iterable[Tensor], source: int) -> None:
        mine = list(tensors)
        for tensor, theirs in zip(
            mine, self._board.exchange(self.rank, [t.clone() for t in mine])[source], strict=True
        ):
            tensor.copy_(theirs)


class RankThreads:
    """The trainings of a job's ranks, prepared."""

    def __init__(self, root: Path, state: Path, workload: ElasticWorkload, world: int) -> None:
        self.trainings = [
            DataParallelTraining(GangRank(_order(root, state, workload, rank, world), cast(Inbox, None)))
            for rank in range(world)
        ]
        for training in self.trainings:
            training.prepare()
        board = Board(world)
        self._groups = [cast(ProcessGroup, ThreadGroup(board, rank)) for rank in range(world)]

    def together(self, work: Callable[[DataParallelTraining, ProcessGroup], T]) -> list[T]:
        """Run something on all ranks at once."""
        with ThreadPoolExecutor(len(self.trainings)) as threads:
            return list(threads.map(work, self.trainings, self._groups))

    def begin(self) -> None:
        """Begin a generation."""
        self.together(lambda training, group: training.begin(group))

    def step(self) -> None:
        """Train one step."""

        def work(training: DataParallelTraining, group: ProcessGroup) -> None:
            own = training.share(group.rank, group.world)
            tokens = sum(row[0] for row in group.gather("tokens", [own.loss_tokens]))
            training.step(group, own, tokens)

        self.together(work)

    def run(self, steps: int) -> None:
        """Train some steps."""
        for _ in range(steps):
            self.step()

    def parameters(self, rank: int = 0) -> dict[str, Tensor]:
        """The trained parameters of a rank."""
        return {
            name: each.clone() for name, each in self.trainings[rank].tensors()["model.safetensors"].items()
        }


def _order(root: Path, state: Path, workload: ElasticWorkload, rank: int, world: int) -> ElasticOrder:
    return ElasticOrder(
        cell="c",
        node=f"n{rank}",
        job_id="j",
        user="u",
        run_id="1/j",
        workload=workload,
        membership=Membership(generation=1, rank=rank, world=world),
        resume_samples=0,
        model_root=root / "models",
        dataset_root=root / "datasets",
        state_root=state,
        output_root=state,
        device="cpu",
        gpu=0,
        threads=1,
        rank_host="127.0.0.1",
        checkpoint_s=60.0,
        checkpoint_wait_s=1.0,
        progress_s=1.0,
        join_timeout_s=10.0,
        peer_timeout_s=10.0,
        least_sequence_s=0.0,
    )
