"""The processes of one job on one node, from their start to the last word of each."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from executors.gang.messages import Ended, Failed, Release, Verdict
from executors.gang.node import GangNode
from executors.processes.forked_process import ForkedProcess, exit_status

_FAILURE_GRACE_S = 15.0
"""So long the processes of a job may take to save what they have when one of them has failed."""
_KILL_MARGIN_S = 0.5
"""Processes are killed so long before they must be gone."""

W = TypeVar("W")


@dataclass
class JobProcess(Generic[W]):
    """One of them, as its node sees it."""

    process: ForkedProcess[W]
    gpu: int
    rank: int
    """In the newest generation that it was told of."""
    joined: int = 0
    """The last generation that it has taken part in; 0 before the first."""
    last_word: Ended | Failed | None = None


class JobProcesses(Generic[W]):
    """Starts, hears and ends them. What they say is for the job.

    Attributes:
        running: those that have not been heard to the end.
        vacant: ranks that get a process as soon as a GPU is free.
        verdict: what was said about the end of all; None while they are to run, or have failed.
    """

    def __init__(
        self, place: GangNode[Any], ranks: Iterable[int], start: Callable[[int, int], ForkedProcess[W]]
    ) -> None:
        """Have none yet; `start` starts the process of a rank on a GPU."""
        self.running: list[JobProcess[W]] = []
        self.vacant = list(ranks)
        self.verdict: Verdict | None = None
        self._place = place
        self._start = start
        self._kill_s: float | None = None
        self._failures: list[Failed] = []

    @property
    def pids(self) -> list[int]:
        """Of those that run."""
        return [each.process.pid for each in self.running]

    @property
    def are_gone(self) -> bool:
        """Whether none runs, and none is to."""
        return not self.running and not self.vacant

    @property
    def have_failed(self) -> bool:
        """Whether one has."""
        return bool(self._failures)

    @property
    def failure(self) -> Failed | None:
        """Of what the job has failed here; None if it has not, or was to end anyway."""
        if not self._failures or self.verdict is not None:
            return None
        return min(self._failures, key=lambda each: (not each.permanent, each.cause == "peer"))

    @property
    def needed_bytes(self) -> int | None:
        """What a disk had no room for, if one has failed of that."""
        return next((each.needed_bytes for each in self._failures if each.needed_bytes is not None), None)

    def tell(self, directive: BaseModel) -> None:
        """Tell all."""
        for each in self.running:
            each.process.tell(directive)

    def release(self, verdict: Verdict, by_s: float | None) -> None:
        """Have all go, at the latest at `by_s` or after the usual grace."""
        now_s = self._place.clock.time_s()
        if by_s is None:
            by_s = now_s + self._place.settings.release_grace_s
        self.verdict = verdict
        self.vacant = []
        self._kill_at(by_s - _KILL_MARGIN_S)
        # A process that others wait for leaves in half of the time, so that they see it go.
        self.tell(Release(verdict=verdict, leave_s=now_s + max(by_s - now_s, 0.0) / 2))

    def kill(self, verdict: Verdict) -> None:
        """Have all go at once."""
        self.verdict = verdict
        self.vacant = []
        for each in self.running:
            each.process.kill()

    def fail(self, failure: Failed) -> None:
        """One cannot go on: the others are to stop."""
        if not self._failures:
            self._kill_at(self._place.clock.time_s() + _FAILURE_GRACE_S)
            self.tell(Release(verdict="stop"))
        self.vacant = []
        self._failures.append(failure)

    def hear(self) -> Iterator[tuple[JobProcess[W], W | Ended | Failed]]:
        """What each has said since the last call. Its last word is heard once it is gone, its GPU free."""
        for each in list(self.running):
            is_alive = each.process.is_alive  # before its words, so that none is missed
            for word in each.process.words():
                if isinstance(word, Ended | Failed):
                    each.last_word = word
                else:
                    yield each, word
            if not is_alive:
                self._bury(each)
                yield each, each.last_word or self._death_of(each)

    def tend(self) -> None:
        """Kill those that are late, and start those that there is room for."""
        if self._kill_s is not None and self._place.clock.time_s() >= self._kill_s:
            for each in self.running:
                each.process.kill()
        free_gpus = self._place.free_gpus
        while self.vacant and free_gpus:
            rank, gpu = self.vacant.pop(0), free_gpus.pop(0)
            try:
                self.running.append(JobProcess(self._start(rank, gpu), gpu, rank))
            except (OSError, EOFError) as error:
                free_gpus.insert(0, gpu)
                what = f"no {self._place.called} process can be started: {error}"
                self.fail(Failed(error=what, permanent=False))

    def _kill_at(self, kill_s: float) -> None:
        self._kill_s = kill_s if self._kill_s is None else min(kill_s, self._kill_s)

    def _bury(self, gone: JobProcess[W]) -> None:
        self.running.remove(gone)
        gone.process.close()
        self._place.free_gpus.append(gone.gpu)
        self._place.free_gpus.sort()

    def _death_of(self, gone: JobProcess[W]) -> Failed:
        called, how = self._place.called, exit_status(gone.process.exit_code)
        return Failed(error=f"a {called} process has ended with {how} and no word", permanent=False)
