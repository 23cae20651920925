"""Merging zones for tests: a small cell, its jobs, and the world around them on virtual time."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from infra.simulation.event_queue import EventQueue, EventRank, Moments
from infra.simulation.merging.truth import SyntheticTruth, Truth
from infra.simulation.merging.tuner import VirtualTuner
from schemas.base import HOURS_PER_DAY, Event, Outcome
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.commands import Command
from schemas.jobs import JobSubmitted, JobWithdrawalRequested
from schemas.lora import Dataset
from schemas.merging.estimates import EstimateProblem
from schemas.merging.problems import MergeProblem, RivalProblem
from schemas.merging.settings import MergingPolicy
from schemas.merging.workload import MergingTerms, TrainingTarget, TuningHyperparameters, TuningWorkload
from schemas.solves import SolveFinished, SolveRequested
from solvers.merging.careful import plan
from solvers.merging.estimator import estimate
from solvers.merging.rivals import allocate
from tests.support.twins import ZONE, TwinBench

CELL, MODEL = "c", "tiny"
GPUS = 4
"""GPUs of each node."""
TICK_S = 5.0
SOLVERS = {MergeProblem: plan, RivalProblem: allocate, EstimateProblem: estimate}


class MergingBench(TwinBench):
    """See `TwinBench`."""

    def counted(self) -> tuple[Any, int]:
        zone = self.cell.configuration.zones[0]
        return self.zone.state(), self.cell.live_jobs_bytes + zone.policy.state_bytes(zone)


def merging_cell(nodes: int = 2, gpus: int = GPUS, **policy: Any) -> CellConfigured:
    """A cell of a merging zone, with nodes n0, n1, ..."""
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=600.0,
        tariffs=(Tariff(name="flat", micros_per_kwh=(0,) * HOURS_PER_DAY),),
        zones=(merging_zone(nodes, gpus, **policy),),
    )


def merging_zone(nodes: int = 2, gpus: int = GPUS, **policy: Any) -> Zone:
    return Zone(
        id=ZONE,
        base_model=MODEL,
        base_model_memory_gib=0.5,
        gpu_types=(GpuType(name="V100", samples_per_s=4.0, memory_gib=32.0 * gpus, gpus=gpus),),
        nodes=tuple(Node(id=f"n{number}", gpu_type="V100", tariff="flat") for number in range(nodes)),
        policy=MergingPolicy(**policy),
    )


def workload(data: str = "a", epochs: int = 10, samples: int = 800, **fields: Any) -> TuningWorkload:
    """Fine-tuning on one dataset, a hundred steps of eight samples in an epoch, until 80 % are right."""
    batch = fields.pop("batch_size", 8)
    steps = -(-samples // batch)
    accuracy = fields.pop("accuracy", 0.8)
    defaults: dict[str, Any] = {
        "model": MODEL,
        "dataset": Dataset(path=f"{data}.jsonl", samples=samples),
        "validation_path": f"{data}.validation.jsonl",
        "hyperparameters": TuningHyperparameters(batch_size=batch),
        "target": TrainingTarget(accuracy=accuracy, most_iterations=epochs * steps),
    }
    return TuningWorkload(**{**defaults, **fields})


def submit(job_id: str, user: str = "ann", data: str = "a", **fields: Any) -> JobSubmitted:
    return JobSubmitted(
        cell=CELL,
        job_id=job_id,
        user=user,
        zone=ZONE,
        workload=workload(data, **fields),
        terms=MergingTerms(),
    )


def withdraw(job_id: str, user: str = "ann") -> JobWithdrawalRequested:
    return JobWithdrawalRequested(cell=CELL, job_id=job_id, user=user)


def tick(time_s: float) -> ClockTicked:
    return ClockTicked(cell=CELL, time_s=time_s)


def answer(requested: SolveRequested) -> SolveFinished:
    """Return the answer of a solver."""
    problem = requested.problem
    solution = SOLVERS[type(problem)](problem, requested.time_limit_s)  # type: ignore[operator]
    return SolveFinished(
        cell=CELL, zone=ZONE, request_id=requested.request_id, solution=solution, solve_s=0.1
    )


class World:
    """Nodes that train on virtual time, a solver, and a clock.

    Args:
        answers: what a solver answers, and after how many seconds; None if never.
        crossing: what a node reports before it has received a command.
    """

    def __init__(
        self,
        cell: CellConfigured,
        truth: Truth | None = None,
        answers: Callable[[SolveRequested], tuple[float, SolveFinished] | None] = lambda asked: (
            0.1,
            answer(asked),
        ),
        crossing: Callable[[Command], Iterable[Event]] = lambda command: (),
    ) -> None:
        self.bench = MergingBench()
        self.time_s = 0.0
        self._answers = answers
        self._crossing = crossing
        self._queue = EventQueue()
        self._tuner = VirtualTuner(CELL, 1.0, truth or SyntheticTruth())
        self.silent: set[str] = set()
        """Nodes that carry out no command, and whose reports are lost."""
        self._queue.add_all(EventRank.TICK, _ticks())
        self.send(cell)

    def send(self, *events: Event) -> list[Outcome]:
        """Something happens now."""
        outcomes: list[Outcome] = []
        for event in events:
            decided = self.bench.send(event)
            outcomes += decided
            for outcome in decided:
                self._react(outcome)
        return outcomes

    def later(self, delay_s: float, event: Event) -> None:
        """Something happens then."""
        self._queue.add(self.time_s + delay_s, EventRank.SET_UP, event)

    def run(self, seconds: float) -> list[Outcome]:
        """Let time pass."""
        until_s = self.time_s + seconds
        outcomes: list[Outcome] = []
        while (due := self._queue.pop(until_s)) is not None:
            self.time_s, event = due
            if getattr(event, "node", None) not in self.silent:
                outcomes += self.send(event)
        self.time_s = until_s
        return outcomes

    def run_until_idle(self, most_s: float = 1e6) -> list[Outcome]:
        """Let time pass until no job is left."""
        outcomes: list[Outcome] = []
        limit_s = self.time_s + most_s
        while self.bench.cell.jobs.live:
            assert self.time_s < limit_s, f"{list(self.bench.cell.jobs.live)} are not over"
            outcomes += self.run(300.0)
        return outcomes

    def _react(self, outcome: Outcome) -> None:
        match outcome:
            case Command() if outcome.node not in self.silent:
                for event in self._crossing(outcome):
                    self.later(0.0, event)
                self._queue.add_all(EventRank.REPORT, self._tuner.carry_out(outcome, self.time_s))
            case SolveRequested():
                answered = self._answers(outcome)
                if answered is not None:
                    self._queue.add(self.time_s + answered[0], EventRank.ANSWER, answered[1])


def _ticks() -> Moments:
    for number in itertools.count():
        yield number * TICK_S, tick(number * TICK_S)
