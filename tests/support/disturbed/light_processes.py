"""Ranks that train nothing: they meet, make progress on virtual time, and end as ordered."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from executors.gang.messages import Ended, Failed, Joined, Membership, RankOrder, RankProgress, Release

JOIN_TIMEOUT_S = 10.0
PROGRESS_S = 5.0
_ENDLESS_SAMPLES = 10**9


def run_s(job_id: str) -> float:
    """Time of a job's whole work: some take so long that no test waits for their end."""
    return 30.0 if int(job_id.lstrip("j")) % 2 else 300.0


@dataclass
class Machine:
    """State that all processes of all nodes share: the clock, the meeting places, and the checkpoints."""

    time_s: float = 0.0
    done: dict[str, float] = field(default_factory=dict)
    """Samples of each job that are checkpointed."""
    processes: "list[LightProcess]" = field(default_factory=list)

    def start(self, order: RankOrder) -> "LightProcess":
        """Start a process."""
        process = LightProcess(self, order)
        self.processes.append(process)
        return process

    def kill_node(self, node: str) -> None:
        """The processes of a node are gone."""
        for process in self.on(node):
            process.kill()

    def on(self, node: str) -> "list[LightProcess]":
        """The processes that run on a node."""
        return [each for each in self.processes if each.order.node == node and each.is_alive]

    def advance(self, time_s: float) -> None:
        """It is `time_s` now."""
        step_s, self.time_s = time_s - self.time_s, time_s
        for process in [each for each in self.processes if each.is_alive]:
            process.advance(step_s)
        self.processes = [each for each in self.processes if each.is_alive]


class LightProcess:
    """See `ForkedProcess`."""

    _pids = itertools.count(1)

    def __init__(self, machine: Machine, order: RankOrder) -> None:
        self.order = order
        self.pid = next(self._pids)
        self.is_alive = True
        self.exit_code: int | None = None
        self.membership = order.membership
        self.joined = 0
        self.ended: str | None = None
        """End of the process, for its peers."""
        self._machine = machine
        self._messages: list[Any] = []
        self._waits_since_s = machine.time_s
        self._progressed_s = machine.time_s
        self._release: Release | None = None
        workload: Any = order.workload  # type: ignore[attr-defined]
        self._total: int | None = workload.total_samples
        requests = getattr(workload, "requests", None)
        self._until_s: float | None = None if requests is None else requests.until_s

    def send(self, directive: object) -> None:
        if isinstance(directive, Membership):
            self.membership, self._waits_since_s = directive, self._machine.time_s
        elif isinstance(directive, Release):
            self._release = directive

    def messages(self) -> list[Any]:
        messages, self._messages = self._messages, []
        return messages

    def kill(self) -> None:
        self.is_alive, self.exit_code = False, -9

    def close(self) -> None:
        pass

    def advance(self, step_s: float) -> None:
        """Do what is to be done in a step of virtual time."""
        peers = self._peers()
        if self._release is not None and self._release.verdict == "leave":
            self._end("left")
        elif self._release is not None or any(peer.ended == "stopped" for peer in peers):
            self._end("stopped")
        elif any(peer.ended == "finished" for peer in peers):
            self._end("finished", answers=self.membership.rank == 0)
        elif self.joined != self.membership.generation:
            self._join(peers)
        elif sum(peer.is_alive for peer in peers) < self.membership.world:
            self._send(Failed(error="another process is gone", permanent=False, cause="peer"))
            self._exit()
        else:
            self._work(step_s)

    @property
    def _samples_done(self) -> int:
        return int(self._machine.done.get(self.order.job_id, 0.0))

    def _peers(self) -> "list[LightProcess]":
        key = (self.order.job_id, self.membership.generation)
        return [
            each for each in self._machine.processes if (each.order.job_id, each.membership.generation) == key
        ]

    def _join(self, peers: "list[LightProcess]") -> None:
        ranks = {peer.membership.rank for peer in peers if peer.is_alive}
        if len(ranks) == self.membership.world:
            self.joined = self.membership.generation
            self._send(Joined(generation=self.joined, samples_done=self._samples_done, dataset_samples=100))
        elif self._machine.time_s - self._waits_since_s > JOIN_TIMEOUT_S:
            self._send(Failed(error="not all have come", permanent=False, cause="peer"))
            self._exit()

    def _work(self, step_s: float) -> None:
        job_id, leads = self.order.job_id, self.membership.rank == 0
        if leads:
            total = self._total or _ENDLESS_SAMPLES
            done = self._machine.done.get(job_id, 0.0) + total * step_s / run_s(job_id)
            self._machine.done[job_id] = min(done, total)
        is_done = self._samples_done >= (self._total or _ENDLESS_SAMPLES)
        if is_done or (self._until_s is not None and self._machine.time_s >= self._until_s):
            self._end("finished", answers=leads)
        elif leads and self._machine.time_s - self._progressed_s >= PROGRESS_S:
            self._progressed_s = self._machine.time_s
            self._send(RankProgress(samples_done=self._samples_done, node_s=0.0, leads=True))

    def _end(self, how: Any, answers: bool = False) -> None:
        self._send(Ended(reason=how, samples_done=self._samples_done, node_s=0.0, answers=answers))
        self.ended = how
        self._exit()

    def _exit(self) -> None:
        self.is_alive, self.exit_code = False, 0

    def _send(self, message: object) -> None:
        self._messages.append(message)
