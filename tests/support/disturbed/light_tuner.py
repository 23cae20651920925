"""The workers of a tuner's node that train nothing: see `executors.tuner.rank_pool.RankPool`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from executors.tuner.messages import Halt, Over, Prewarm, ProfilePart, TaskPart, TaskReport
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.commands import JobOrder
from schemas.merging.reports import MeasuredStep, TaskProfiled
from tests.support.disturbed.light_processes import JOIN_TIMEOUT_S, PROGRESS_S, run_s

PROFILE_S = 8.0
STEP_S = 1.0
CELL = "c"


@dataclass
class Part:
    """Part of a task that a worker does."""

    part: TaskPart | ProfilePart
    node: str
    began_s: float
    since_s: float | None = None
    """When all of its workers had come together."""
    reported_s: float = 0.0
    is_halted: bool = False
    finished: set[str] = field(default_factory=set)
    """Jobs with a reported end."""

    @property
    def key(self) -> tuple[str, int]:
        return self.part.meeting, self.part.membership.generation

    @property
    def orders(self) -> tuple[JobOrder, ...]:
        command = self.part.command
        return command.orders if hasattr(command, "orders") else (command.order,)


@dataclass
class Meeting:
    """All workers of all nodes, and the clock."""

    time_s: float = 0.0
    parts: list[Part] = field(default_factory=list)
    gone: set[tuple[str, int]] = field(default_factory=set)
    """Tasks of which a worker has died."""
    stopped: set[tuple[str, int]] = field(default_factory=set)
    ran_s: dict[str, float] = field(default_factory=dict)
    """Time that each job has been trained: checkpointed after each step."""

    def kill_node(self, node: str) -> None:
        """The workers of a node are gone."""
        self.gone |= {part.key for part in self.on(node)}
        self.parts = [part for part in self.parts if part.node != node]
        self.forget()

    def forget(self) -> None:
        """Nothing is known of tasks that no worker has."""
        keys = {part.key for part in self.parts}
        self.gone &= keys
        self.stopped &= keys

    def on(self, node: str) -> list[Part]:
        return [part for part in self.parts if part.node == node]


@dataclass
class LightRank:
    """See `PooledRank`."""

    gpu: int
    parts: list[int] = field(default_factory=list)
    is_ready: bool = True
    waiting: list[TaskPart | ProfilePart] = field(default_factory=list)
    present: Part | None = None


class LightRanks:
    """See `RankPool`."""

    def __init__(self, node: str, gpus: int, meeting: Meeting) -> None:
        self.node = node
        self.ranks = [LightRank(gpu) for gpu in range(gpus)]
        self.pids: list[int] = []
        self._meeting = meeting
        self._messages: list[tuple[LightRank, Any]] = []
        self._halts: list[Halt] = []

    def messages(self) -> Iterator[tuple[LightRank, Any]]:
        messages, self._messages = self._messages, []
        yield from messages

    def restart_ended(self) -> Iterator[tuple[int, str]]:
        yield from ()

    def prewarm(self, prewarm: Prewarm) -> None:
        pass

    def give(self, rank: LightRank, part: TaskPart | ProfilePart) -> None:
        rank.parts.append(part.part)
        rank.waiting.append(part)

    def halt(self, halt: Halt) -> None:
        self._halts.append(halt)

    def send_halts(self) -> None:
        for halt in self._halts:
            for rank in self.ranks:
                if rank.present is not None and rank.present.part.part == halt.part:
                    rank.present.is_halted = True
                for part in [each for each in rank.waiting if each.part == halt.part]:
                    rank.waiting.remove(part)
                    self._messages.append((rank, Over(part=part.part, outcome="stopped")))
        self._halts.clear()

    def kill(self) -> None:
        self._meeting.kill_node(self.node)

    def advance(self) -> None:
        """Do what is to be done in a step of virtual time."""
        for rank in self.ranks:
            if rank.present is None and rank.waiting:
                rank.present = Part(rank.waiting.pop(0), self.node, self._meeting.time_s)
                self._meeting.parts.append(rank.present)
            if rank.present is not None:
                self._work(rank, rank.present)

    def _work(self, rank: LightRank, part: Part) -> None:
        meeting, now_s = self._meeting, self._meeting.time_s
        leads = part.part.membership.rank == 0
        if part.is_halted or part.key in meeting.stopped:
            meeting.stopped.add(part.key)
            self._over(rank, part, "stopped")
            return
        ranks = {each.part.membership.rank for each in meeting.parts if each.key == part.key}
        if part.since_s is None:
            if len(ranks) == part.part.membership.world:
                part.since_s = part.reported_s = now_s
                for order in part.orders if leads else ():
                    self._send(rank, part, order, RunStarted)
            elif now_s - part.began_s > JOIN_TIMEOUT_S:
                self._fail(rank, part, "not all have come")
        elif part.key in meeting.gone:
            self._fail(rank, part, "another worker is gone")
        elif isinstance(part.part, ProfilePart):
            self._profile(rank, part)
        else:
            self._train(rank, part)

    def _profile(self, rank: LightRank, part: Part) -> None:
        assert part.since_s is not None
        if self._meeting.time_s - part.since_s < PROFILE_S:
            return
        step = MeasuredStep(
            gpus=part.part.membership.world,
            nodes=1,
            micro_batch_size=8,
            accumulation_steps=1,
            step_s=0.1,
            exchange_s=0.0,
        )
        self._send(
            rank,
            part,
            part.orders[0],
            TaskProfiled,
            losses=tuple(2.0 - 0.1 * number for number in range(12)),
            embedding=(1.0, 2.0, 3.0),
            accuracy=0.3,
            steps=(step,),
            memory_gib=1.0,
            loader_s=0.1,
            dataset_samples=800,
        )
        self._over(rank, part, "finished")

    def _train(self, rank: LightRank, part: Part) -> None:
        """One job of the task after the other."""
        ran_s = self._meeting.ran_s
        left = [order for order in part.orders if ran_s.get(order.job_id, 0.0) < run_s(order.job_id)]
        if part.part.membership.rank != 0:
            if not left:
                self._over(rank, part, "finished")
            return
        for order in left[:1]:
            ran_s[order.job_id] = ran_s.get(order.job_id, 0.0) + STEP_S
        for order in part.orders:
            if order not in left and order.job_id not in part.finished:
                part.finished.add(order.job_id)
                self._send(rank, part, order, RunFinished)
        if self._meeting.time_s - part.reported_s >= PROGRESS_S:
            part.reported_s = self._meeting.time_s
            for order in [each for each in part.orders if each.job_id not in part.finished]:
                self._send(rank, part, order, RunProgressed, node_s=0.0, complete=False)
        if len(part.finished) == len(part.orders):
            self._over(rank, part, "finished")

    def _fail(self, rank: LightRank, part: Part, error: str) -> None:
        if part.part.membership.rank == 0:
            for order in part.orders:
                self._send(rank, part, order, RunFailed, error=error, permanent=False)
        self._over(rank, part, "failed")

    def _send(
        self, rank: LightRank, part: Part, order: JobOrder, kind: type[RunReport], **fields: Any
    ) -> None:
        place = {"cell": CELL, "node": self.node, "run_id": order.run_id, "job_id": order.job_id}
        ran_s = self._meeting.ran_s.get(order.job_id, 0.0)
        samples_done = int(order.workload.total_samples * min(ran_s / run_s(order.job_id), 1.0))
        report = kind(**place, samples_done=samples_done, **fields)
        sent = TaskReport(part=part.part.part, type=report.TYPE, data=report.model_dump(mode="json"))
        self._messages.append((rank, sent))

    def _over(self, rank: LightRank, part: Part, outcome: Any) -> None:
        self._meeting.parts.remove(part)
        self._meeting.forget()
        rank.present = None
        self._messages.append((rank, Over(part=part.part.part, outcome=outcome)))
