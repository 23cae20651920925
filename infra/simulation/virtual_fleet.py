"""Everything around a cell in a simulation: events to come, executors that train nothing, and a solver."""

import gc
import hashlib
import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pkgutil import resolve_name
from typing import Any

from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Decision
from schemas.commands import RunOrder, SlotAssigned
from schemas.fleet import NodeOnline, RunFinished, RunProgressed, RunStarted
from schemas.kinds import SOLVES
from schemas.solves import SolveFinished, SolveRequested


class Rank(IntEnum):
    """The order of events at the same instant, as an orderly deployment would have it."""

    SET_UP = 0
    """Configuration, nodes, quotes."""
    REPORT = 1
    """What a slot's runs report at its very end, before the tick that opens the next one."""
    TICK = 2
    ANSWER = 3
    """A solver's, at the instant at which it was asked: solving takes no virtual time."""
    BID = 4


class Agenda:
    """Events to come. Ties of time and rank are served in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Rank, int, Event]] = []
        """Time, rank and number of the event; no two numbers are equal, so events are never compared."""
        self._added = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite where nothing is planned."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, time_s: float, rank: Rank, event: Event) -> None:
        """Plan an event."""
        heapq.heappush(self._heap, (time_s, rank, self._added, event))
        self._added += 1

    def pop(self) -> tuple[float, Event]:
        """Take the next event and its time.

        Raises:
            IndexError: nothing is planned.
        """
        time_s, _, _, event = heapq.heappop(self._heap)
        return time_s, event


NO_LOSS = 0.0
"""Nothing is trained, so no loss is measured; no summary shows it."""


@dataclass
class VirtualExecutor:
    """One node. As a zone's executors share their checkpoints, `samples_done` is that of all nodes."""

    cell: str
    node: str
    base_model: str
    pace: float
    """Its speed, as a part of the speed that the zone plans with."""
    samples_done: dict[str, int] = field(repr=False)
    """By job."""

    def online(self) -> NodeOnline:
        """What it says when it starts."""
        return NodeOnline(
            cell=self.cell, node=self.node, base_model=self.base_model, runners=(SlotAssigned.RUNNER,)
        )

    def carry_out(self, command: SlotAssigned, until_s: float = math.inf) -> Iterator[tuple[float, Event]]:
        """What it reports of a slot, and when: each run's start, and its end with the slot or its work.

        A run that does not end by `until_s`, when the node is lost, reports no end and leaves no checkpoint.
        """
        for order in command.runs:
            yield from self._run(command, order, until_s)

    def _run(self, command: SlotAssigned, order: RunOrder, until_s: float) -> Iterator[tuple[float, Event]]:
        start_s, end_s = command.slot_start_s, command.slot_end_s
        base = self.samples_done.get(order.job_id, 0)
        place: dict[str, Any] = {
            "cell": self.cell,
            "node": self.node,
            "run_id": order.run_id,
            "job_id": order.job_id,
        }
        yield start_s, RunStarted(**place, samples_done=base)
        done = min(base + self._reach(base, order), order.work_samples)
        finished = done == order.work_samples
        report_s = end_s
        if finished:
            report_s = start_s + (end_s - start_s) * min(
                (done - base) / (self.pace * order.quota_samples), 1.0
            )
        if report_s > until_s:
            return
        self.samples_done[order.job_id] = done
        if not finished:
            # A slow node is no slow task: what it was too slow for counts as time that the run did not have.
            node_s = (end_s - start_s) * min((done - base) / order.quota_samples, 1.0)
            yield (
                report_s,
                RunProgressed(**place, samples_done=done, loss=NO_LOSS, node_s=node_s, complete=True),
            )
            return
        yield (
            report_s,
            RunFinished(
                **place,
                samples_done=done,
                loss=NO_LOSS,
                adapter_path=f"{self.cell}/{order.user}/{order.job_id}",
                adapter_digest=hashlib.blake2b(order.job_id.encode(), digest_size=32).hexdigest(),
            ),
        )

    def _reach(self, base: int, order: RunOrder) -> int:
        """Samples trained in a whole slot: batch by batch, to the first one at or after the quota."""
        batch = order.hyperparameters.batch_size
        if self.pace < 1:
            return int(self.pace * order.quota_samples) // batch * batch
        return -(-(base + order.quota_samples) // batch) * batch - base


Presence = Callable[[str, float], float | None]
"""Until when a node is there that is there at this moment, in seconds; None if it is not."""


def always_there(_node: str, _time_s: float) -> float | None:
    """The presence of nodes that are never lost."""
    return math.inf


class VirtualFleet:
    """What becomes of decisions, as events on an agenda."""

    def __init__(
        self, cell: CellConfigured, pace: float, agenda: Agenda, until_s: Presence = always_there
    ) -> None:
        """See `VirtualExecutor` for `pace`. All executors of a cell share their checkpoints."""
        samples_done: dict[str, int] = {}
        self.executors = {
            node.id: VirtualExecutor(cell.cell, node.id, zone.base_model, pace, samples_done)
            for zone in cell.zones
            for node in zone.nodes
        }
        self._agenda = agenda
        self._until_s = until_s

    def carry_out(self, time_s: float, decision: Decision) -> None:
        """Have done what a decision of this moment asks executors or solvers to do."""
        match outcome := decision.outcome:
            case SlotAssigned():
                until_s = self._until_s(outcome.node, max(outcome.slot_start_s, time_s))
                if until_s is None:
                    return
                for report_s, report in self.executors[outcome.node].carry_out(outcome, until_s):
                    self._agenda.add(max(report_s, time_s), Rank.REPORT, report)
            case SolveRequested():
                self._agenda.add(time_s, Rank.ANSWER, _solved(decision.cell, outcome))
                # A simulation looks for no cycles on its own, and a solver's model is a large one.
                gc.collect(0)


def _solved(cell: str, request: SolveRequested) -> SolveFinished:
    # Loaded only now: a solver brings libraries that other policies do not need.
    (solve,) = (solve for solve in SOLVES if isinstance(request.problem, solve.problem))
    began_s = time.perf_counter()
    solution = resolve_name(solve.function)(request.problem, request.time_limit_s)
    return SolveFinished(
        cell=cell,
        zone=request.zone,
        request_id=request.request_id,
        solution=solution,
        solve_s=time.perf_counter() - began_s,
    )
