"""The demo's stage on virtual time: a real cell, and executors that carry out its commands at a given
speed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from infra.demo.demo_environment import Stage
from infra.figures.board import Boards
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.fleet import NodeOnline, RunFinished, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted
from schemas.lora_commands import RunOrder, SlotAssigned
from streams.cell.state_machine import Cell
from tests.support.cells import EPOCH_S, Bench

LATENCY_S = 0.3
RESTART_S = 6.0


@dataclass
class Clock:
    """Both of `time`'s clocks."""

    now_s: float = EPOCH_S

    def time(self) -> float:
        return self.now_s

    monotonic = time


@dataclass
class VirtualLog:
    """Feeds a cell with what is due, and shows what it decides; time passes when it is polled."""

    cell: CellConfigured
    clock: Clock
    samples_per_s: float = 60.0
    """Speed of a node; later runs take `slowdown` times as long."""
    slowdown: Callable[[RunOrder], float] = lambda _order: 1.0
    bench: Bench = field(init=False)
    boards: Boards = field(default_factory=Boards)
    sent: list[Event] = field(default_factory=list)
    """Events that the demo has sent."""
    coming: list[tuple[float, Event]] = field(default_factory=list)
    _done: dict[str, int] = field(default_factory=dict)
    _next_tick_s: float = EPOCH_S

    def __post_init__(self) -> None:
        self.bench = Bench(Cell(self.cell.cell))
        self.coming = [(EPOCH_S, self.cell), *((EPOCH_S + 3.0, self._online(node)) for node in self.nodes)]
        self.poll(0.0)

    @property
    def nodes(self) -> list[str]:
        return [node.id for zone in self.cell.zones for node in zone.nodes]

    def publish(self, event: Event) -> None:
        self.sent.append(event)
        self.coming.append((self.clock.now_s, event))

    def kill(self, node: str) -> None:
        """Nothing more comes from its executor until it has started again."""
        self.coming = [(due_s, event) for due_s, event in self.coming if getattr(event, "node", None) != node]
        self.coming.append((self.clock.now_s + RESTART_S, self._online(node)))

    def poll(self, timeout_s: float) -> list[Envelope | Decision]:
        self.clock.now_s += timeout_s
        while self._next_tick_s <= self.clock.now_s:
            tick = ClockTicked(cell=self.cell.cell, time_s=self._next_tick_s)
            self.coming.append((self._next_tick_s, tick))
            self._next_tick_s += 1.0
        records: list[Envelope | Decision] = []
        while due := [each for each in self.coming if each[0] <= self.clock.now_s]:
            first = min(due, key=lambda each: each[0])
            self.coming.remove(first)
            records += self._fold(first[1])
        return records

    def _fold(self, event: Event) -> list[Envelope | Decision]:
        before = len(self.bench.decisions)
        self.bench.send(event)
        decisions = self.bench.decisions[before:]
        for decision in decisions:
            if isinstance(decision.outcome, SlotAssigned):
                self._obey(decision.outcome)
        entry = self.bench.ledger[-1]
        for record in (entry, *decisions):
            self.boards.fold(record)
        return [entry.envelope, *decisions]

    def _obey(self, slot: SlotAssigned) -> None:
        at_s = slot.slot_start_s + LATENCY_S
        for order in slot.runs:
            named: dict[str, Any] = {
                "cell": self.cell.cell,
                "node": slot.node,
                "run_id": order.run_id,
                "job_id": order.job_id,
            }
            done = min(order.resume_samples + order.quota_samples, order.work_samples)
            self.coming.append((at_s, RunStarted(samples_done=order.resume_samples, **named)))
            took_s = (done - order.resume_samples) / self.samples_per_s * self.slowdown(order)
            half = (order.resume_samples + done) // 2
            for part_s, samples, is_end in ((took_s / 2, half, False), (took_s, done, True)):
                report: Event = RunProgressed(
                    samples_done=samples, loss=1.0, node_s=part_s, complete=is_end, **named
                )
                if is_end and done == order.work_samples:
                    report = RunFinished(
                        samples_done=done, loss=0.5, adapter_path="a", adapter_digest="0" * 64, **named
                    )
                self.coming.append((at_s + part_s, report))
            at_s += took_s

    def _online(self, node: str) -> NodeOnline:
        zone = next(zone for zone in self.cell.zones if node in {each.id for each in zone.nodes})
        return NodeOnline(cell=self.cell.cell, node=node, base_model=zone.base_model, runners=("lora",))


def virtual_stage(log: VirtualLog, lines: list[str], patience_s: float = 300.0) -> Stage:
    """A stage on such a log. The process id of a node's executor is its number from 1 on."""
    executors = {
        (log.cell.cell, node): SimpleNamespace(pid=number) for number, node in enumerate(log.nodes, 1)
    }
    deployment: Any = SimpleNamespace(
        cells=[log.cell], executors=executors, keep_running=lambda: None, start_executors=lambda zones: None
    )
    publishers: Any = dict.fromkeys(("users", "vendors", "inference", "operators"), log)
    progress: Any = SimpleNamespace(show=lines.append, awaits=lambda _what="": None)
    follower: Any = log
    return Stage(deployment, follower, publishers, progress, patience_s)


def submitted(log: VirtualLog) -> dict[str, JobSubmitted]:
    """The jobs that the demo has submitted."""
    return {event.job_id: event for event in log.sent if isinstance(event, JobSubmitted)}
