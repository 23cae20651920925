"""Ranks of a node, which outlive their tasks."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from executors.gang.rank_processes import exit_error
from executors.node.runner import LoadingInterruptedError, UnfitError
from executors.processes.forked_process import ForkedProcess, exit_status
from executors.tuner.messages import (
    MESSAGES,
    Halt,
    Message,
    Over,
    Prewarm,
    ProfilePart,
    RankEnvironment,
    Ready,
    Switched,
    TaskPart,
    TaskReport,
    Unfit,
)

_RANK = "executors.tuner.rank"
_INDEXER = "executors.tuner.indexing"
_POLL_S = 0.02

_log = logging.getLogger(__name__)


@dataclass
class PooledRank:
    """A rank on its node, with its parts in order."""

    gpu: int
    process: ForkedProcess[Message]
    parts: list[int] = field(default_factory=list)
    is_ready: bool = False


class RankPool:
    """A node's ranks, one for each GPU. A rank whose process has ended is restarted."""

    def __init__(self, environment: RankEnvironment, gpus: int) -> None:
        """Start a rank for each GPU.

        Args:
            environment: environment of all ranks; its `gpu` is replaced.
        """
        self._environment = environment
        self._halts: list[Halt] = []
        self._were_ready = False
        self._indexer = self._start_indexer()
        self.ranks = [self._start(gpu) for gpu in range(gpus)]

    def await_ready(self) -> None:
        """Wait until all ranks have the base model.

        Raises:
            UnfitError: a rank cannot load it.
            LoadingInterruptedError: a rank was killed meanwhile.
        """
        while not all(rank.is_ready for rank in self.ranks):
            for _, _ in self.messages():
                raise AssertionError("a rank without a part has nothing to report")
            for rank in self.ranks:
                if not rank.is_ready and not rank.process.is_alive:
                    raise _lost_while_loading(rank)
            time.sleep(_POLL_S)
        self._were_ready = True

    def messages(self) -> Iterator[tuple[PooledRank, TaskReport | Switched | Over]]:
        """Yield the ranks' messages about their parts.

        Raises:
            UnfitError: a rank cannot load the base model.
            LoadingInterruptedError: a restarted rank cannot load it.
        """
        for rank in self.ranks:
            for message in rank.process.messages():
                if isinstance(message, Ready):
                    rank.is_ready = True
                elif isinstance(message, Unfit):
                    error = f"base_model_dir: {message.error}"
                    raise LoadingInterruptedError(error) if self._were_ready else UnfitError(error)
                else:
                    yield rank, message

    def restart_ended(self) -> Iterator[tuple[int, str]]:
        """Restart ranks whose process has ended, and yield their parts, each with the exit status.

        Raises:
            LoadingInterruptedError: a rank ended before it had the base model.
        """
        for index, rank in enumerate(self.ranks):
            if rank.process.is_alive:
                continue
            if not rank.is_ready:
                raise _lost_while_loading(rank)
            status = exit_status(rank.process.exit_code)
            _log.warning("rank has ended gpu=%d with %s; it is started again", rank.gpu, status)
            rank.process.close()
            self.ranks[index] = self._start(rank.gpu)
            for part in rank.parts:
                yield part, status

    def prewarm(self, prewarm: Prewarm) -> None:
        """Order the indexer to check the data of a job."""
        if not self._indexer.is_alive:
            self._indexer.close()
            self._indexer = self._start_indexer()
        self._indexer.send(prewarm)

    @staticmethod
    def give(rank: PooledRank, part: TaskPart | ProfilePart) -> None:
        """Send a rank a part, after those that it has."""
        rank.parts.append(part.part)
        rank.process.send(part)

    def halt(self, halt: Halt) -> None:
        """Halt a part on all of its ranks, with the next `send_halts`."""
        self._halts.append(halt)

    def send_halts(self) -> None:
        """Send the halts. Parts that follow were sent before, and so are prepared during the training."""
        for halt in self._halts:
            for rank in self.ranks:
                if halt.part in rank.parts:
                    rank.process.send(halt)
        self._halts.clear()

    def kill(self) -> None:
        self._indexer.kill()
        for rank in self.ranks:
            rank.process.kill()

    @property
    def pids(self) -> list[int]:
        return [rank.process.pid for rank in self.ranks]

    def _start_indexer(self) -> ForkedProcess[Message]:
        return ForkedProcess(f"{_INDEXER}:run_indexer", self._environment, MESSAGES, "tuner-indexer")

    def _start(self, gpu: int) -> PooledRank:
        environment = self._environment.model_copy(update={"gpu": gpu})
        return PooledRank(gpu, ForkedProcess(f"{_RANK}:run_rank", environment, MESSAGES, f"tuner-{gpu}"))


def _lost_while_loading(rank: PooledRank) -> LoadingInterruptedError:
    status = exit_status(rank.process.exit_code)
    return LoadingInterruptedError(f"{exit_error(status)}, while it loaded its model")
