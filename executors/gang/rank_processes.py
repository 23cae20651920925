"""The ranks of one job on one node, as processes: from their start to the final message of each."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from executors.gang.gang_node import GangNode
from executors.gang.messages import Ended, Failed, RankMessage, Release, Verdict
from executors.processes.forked_process import ForkedProcess, exit_status

_FAILURE_GRACE_S = 15.0
"""Time for ranks to save their state after one of them has failed (s)."""
_KILL_MARGIN_S = 0.5
"""Time before the deadline at which ranks are killed (s)."""


@dataclass
class RankProcess:
    """A rank on its node."""

    process: ForkedProcess[RankMessage]
    gpu: int
    rank: int
    """Its number in the newest generation that was sent to it."""
    joined: int = 0
    """Last generation that it has taken part in; 0 before the first."""
    final: Ended | Failed | None = None


class RankProcesses:
    """Starts and ends the ranks of a job, and receives their messages.

    Attributes:
        running: processes whose final message is not yet processed.
        vacant: ranks that get a process as soon as a GPU is free.
        verdict: end of all ranks; None while they are to run, or have failed.
    """

    def __init__(
        self,
        node: GangNode[Any],
        ranks: Iterable[int],
        start: Callable[[int, int], ForkedProcess[RankMessage]],
    ) -> None:
        """Start without processes; `start` starts the process of a rank on a GPU."""
        self.running: list[RankProcess] = []
        self.vacant = list(ranks)
        self.verdict: Verdict | None = None
        self._node = node
        self._start = start
        self._kill_s: float | None = None
        self._failures: list[Failed] = []

    @property
    def pids(self) -> list[int]:
        return [each.process.pid for each in self.running]

    @property
    def are_gone(self) -> bool:
        """Whether no process runs, and none is to be started."""
        return not self.running and not self.vacant

    @property
    def have_failed(self) -> bool:
        return bool(self._failures)

    @property
    def failure(self) -> Failed | None:
        """Failure of the job here; None if it has not failed, or was to end anyway."""
        if not self._failures or self.verdict is not None:
            return None
        return min(self._failures, key=lambda each: (not each.permanent, each.cause == "peer"))

    @property
    def needed_bytes(self) -> int | None:
        """Bytes that a disk refused, if a rank failed by that."""
        return next((each.needed_bytes for each in self._failures if each.needed_bytes is not None), None)

    def send(self, directive: BaseModel) -> None:
        for each in self.running:
            each.process.send(directive)

    def release(self, verdict: Verdict, by_s: float | None) -> None:
        """End all, at the latest at `by_s` (Unix time), or after `release_grace_s` without a time."""
        now_s = self._node.clock.time_s()
        if by_s is None:
            by_s = now_s + self._node.settings.release_grace_s
        self.verdict = verdict
        self.vacant = []
        self._kill_at(by_s - _KILL_MARGIN_S)
        # A rank that others wait for leaves in half of the time, so that they detect its end.
        self.send(Release(verdict=verdict, leave_s=now_s + max(by_s - now_s, 0.0) / 2))

    def kill(self, verdict: Verdict) -> None:
        """Kill all at once."""
        self.verdict = verdict
        self.vacant = []
        for each in self.running:
            each.process.kill()

    def fail(self, failure: Failed) -> None:
        """Record that one rank cannot continue: the others are to stop."""
        if not self._failures:
            self._kill_at(self._node.clock.time_s() + _FAILURE_GRACE_S)
            self.send(Release(verdict="stop"))
        self.vacant = []
        self._failures.append(failure)

    def receive(self) -> Iterator[tuple[RankProcess, RankMessage]]:
        """Yield the messages since the last call. A final message follows after the exit of its process, with
        its GPU free."""
        for each in list(self.running):
            is_alive = each.process.is_alive  # before its messages, so that none is missed
            for message in each.process.messages():
                if isinstance(message, Ended | Failed):
                    each.final = message
                else:
                    yield each, message
            if not is_alive:
                self._remove(each)
                yield each, each.final or _exited(each)

    def reconcile(self) -> None:
        """Kill late processes, and start those that have GPUs."""
        if self._kill_s is not None and self._node.clock.time_s() >= self._kill_s:
            for each in self.running:
                each.process.kill()
        free_gpus = self._node.free_gpus
        while self.vacant and free_gpus:
            rank, gpu = self.vacant.pop(0), free_gpus.pop(0)
            try:
                self.running.append(RankProcess(self._start(rank, gpu), gpu, rank))
            except (OSError, EOFError) as error:
                free_gpus.insert(0, gpu)
                self.fail(Failed(error=f"no rank process can be started: {error}", permanent=False))

    def _kill_at(self, kill_s: float) -> None:
        self._kill_s = kill_s if self._kill_s is None else min(kill_s, self._kill_s)

    def _remove(self, gone: RankProcess) -> None:
        self.running.remove(gone)
        gone.process.close()
        self._node.free_gpus.append(gone.gpu)
        self._node.free_gpus.sort()


def exit_error(status: str) -> str:
    """Return the error of a rank whose process has ended by itself.

    Args:
        status: its `exit_status`.
    """
    return f"a rank process has ended with {status} and no final message"


def _exited(gone: RankProcess) -> Failed:
    return Failed(error=exit_error(exit_status(gone.process.exit_code)), permanent=False)
