"""A node's assignments against their specification, in random histories: newer generations, releases, lost
ranks, late reports and restarts, for the runners whose ranks end with their job and whose ranks last."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from executors.elastic.runner import ElasticRunner
from executors.elastic.settings import ElasticSettings
from executors.gang import local_gang
from executors.gang.messages import Ended, Failed, Joined, RankProgress, Release
from executors.gang.rank_runner import RankRunner
from executors.tuner import rank_pool
from executors.tuner.messages import Halt, Over, RankEnvironment, Ready, TaskPart, TaskReport
from executors.tuner.rank_pool import RankPool
from executors.tuner.runner import TunerRunner
from executors.tuner.settings import TunerSettings
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from tests.support import elastic_nodes, tuner_nodes
from tests.support.examples import seeds
from tests.support.nodes import CELL, Nodes, is_end

NODE = "n1"
GPUS = 2
JOBS = ("a", "b", "c")
STEPS = 60
HISTORIES = 10
"""For each seed."""
ROUNDS = 20


class LightRank:
    """A rank without a process: the history decides what it does with its directives."""

    all: ClassVar[list["LightRank"]] = []

    def __init__(self, work: str, order: Any, *_: object) -> None:
        self.order, self.is_alive, self.exit_code, self.pid = order, True, None, 0
        self.is_indexer = "indexer" in work
        self.directives: list[Any] = []
        self._outbox: list[Any] = []
        LightRank.all.append(self)

    def send(self, directive: BaseModel) -> None:
        self.directives.append(directive)

    def report(self, *messages: BaseModel) -> None:
        self._outbox += messages

    def messages(self) -> list[Any]:
        said, self._outbox = self._outbox, []
        return said

    def end(self, exit_code: int = 0) -> None:
        self.is_alive, self.exit_code = False, exit_code

    def kill(self) -> None:
        self.end(-9)

    def close(self) -> None:
        """Release nothing."""


@dataclass
class Assigned:
    """An assignment that was accepted."""

    command: Any
    runs: dict[str, str]
    """Runs whose end is not reported, by job."""
    jobs: frozenset[str] = frozenset()
    is_released: bool = False
    has_ended: bool = False
    """Whether its ranks have ended, or are lost."""
    is_busy: bool = False
    """Whether ranks still have it, though the ends of its runs may be reported."""


@dataclass
class Specification:
    """The assignments of a node, from what was ordered and reported alone."""

    known: list[Assigned] = field(default_factory=list)
    """All by arrival."""

    def of(self, jobs: Sequence[str]) -> list[Assigned]:
        """Return what is not over of some jobs."""
        return [each for each in self.known if (each.runs or each.is_busy) and not each.jobs.isdisjoint(jobs)]

    def objection(self, jobs: Sequence[str], generation: int, assigns: bool) -> str | None:
        """Return why a command is not applied as it is."""
        newest = max((each.command.generation for each in self.of(jobs)), default=None)
        if newest is None:
            return None if assigns else "unknown_run"
        return "out_of_date" if generation < newest + assigns else None

    def assign(self, command: Any, runs: dict[str, str]) -> None:
        """A newer assignment ends those before of its jobs."""
        for each in self.of([*runs]):
            each.is_released = True
        self.known.append(Assigned(command, runs, frozenset(runs)))

    def release(self, jobs: Sequence[str], generation: int) -> None:
        for each in self.of(jobs):
            each.is_released = each.is_released or each.command.generation <= generation

    def report(self, report: RunReport) -> None:
        """A run is reported until its end, and no more after it."""
        (each,) = (each for each in self.known if report.run_id in each.runs.values())
        if is_end(report):
            del each.runs[report.job_id]

    @property
    def held(self) -> list[str]:
        """Runs that the node continues."""
        going_on = [each for each in self.known if not each.is_released and not each.has_ended]
        return sorted(run_id for each in going_on for run_id in each.runs.values())

    def begins(self, command: Any) -> None:
        """An assignment gets a rank: nothing before it is open of its jobs."""
        (begun,) = (each for each in self.known if each.command == command)
        assert self.of([*begun.jobs])[0] is begun
        assert not begun.is_released


class History(ABC):
    """A random history of one node, and its specification."""

    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng, self.root = rng, root
        self.model, self.generation = Specification(), 0
        self.begun: set[int] = set()
        """Generations whose ranks were seen."""
        LightRank.all.clear()
        self.reports: list[RunReport] = []
        self.runner = self.start()

    @abstractmethod
    def start(self) -> RankRunner[Any, Any, Any, Any]:
        """Start the node's runner."""

    @abstractmethod
    def assigned(self, jobs: Sequence[str], generation: int) -> Any:
        """Return a command, and remember its runs."""

    @abstractmethod
    def released(self, jobs: Sequence[str], generation: int, reason: str) -> Any:
        """Return the command that ends it."""

    @abstractmethod
    def jobs(self) -> list[str]:
        """Draw the jobs of an assignment."""

    @abstractmethod
    def act(self, rank: LightRank, what: str) -> None:
        """Have a rank do something, if it has work."""

    @abstractmethod
    def commands(self, rank: LightRank) -> Iterator[Any]:
        """Yield the commands of a rank's work, in order."""

    def busy(self, rank: LightRank) -> list[Any]:
        """Return the commands whose work a rank has not ended, though it may have reported it."""
        return []

    def step(self) -> None:
        rng = self.rng
        ranks = [rank for rank in LightRank.all if rank.is_alive and not rank.is_indexer]
        what = rng.choices(["assign", "release", "disown", "act", "advance", "restart"], [6, 4, 1, 12, 12, 1])
        match what[0]:
            case "assign":
                self._assign()
            case "release":
                self._release()
            case "disown":
                self._disown()
            case "act" if ranks:
                self.act(rng.choice(ranks), rng.choice(["go on", "go on", "finish", "fail", "die", "late"]))
            case "advance":
                self.advance()
            case "restart":
                self.advance()
                state = self.runner.state()
                LightRank.all.clear()
                self.runner = self.start()
                if state is not None:
                    self.runner.restore(state)
                self.restarted()
                self.advance()

    @abstractmethod
    def restarted(self) -> None:
        """The node's process has begun again, without its ranks."""

    def advance(self) -> None:
        self.runner.advance()
        for report in self.reports:
            self.model.report(report)
        self.reports.clear()
        for each in self.model.known:
            each.is_busy = any(each.command in self.busy(rank) for rank in LightRank.all if rank.is_alive)
        for rank in LightRank.all:
            for command in self.commands(rank):
                if command.generation not in self.begun:
                    self.model.begins(command)
                    self.begun.add(command.generation)
        assert sorted(self.runner.held_runs()) == self.model.held

    def settle(self) -> None:
        """Ranks end their work, until nothing is left."""
        for _ in range(ROUNDS):
            self.advance()
            for rank in [rank for rank in LightRank.all if rank.is_alive and not rank.is_indexer]:
                self.act(rank, "finish")
        self.advance()
        assert self.runner.is_idle
        assert not self.model.of(JOBS), "the end of each run is reported"

    def _assign(self) -> None:
        jobs, stale = self.jobs(), self.rng.random() < 0.2
        self.generation += 1
        generation = max(self.generation - self.rng.randint(1, 4), 1) if stale else self.generation
        command = self.assigned(jobs, generation)
        expected = self.model.objection(jobs, generation, assigns=True)
        is_known = any(each.command == command for each in self.model.known)
        if stale and (expected is None or is_known):
            return
        objection = self.runner.validate(command)
        assert (objection and objection.kind) == expected
        if objection is None:
            self.runner.apply(command)
            self.model.assign(command, {job_id: self.run_of(command, job_id) for job_id in jobs})
            if self.rng.random() < 0.2:
                self.runner.apply(command)  # a duplicate changes nothing

    def _release(self) -> None:
        jobs = self.rng.choice([self.jobs(), *(sorted(each.jobs) for each in self.model.of(JOBS))])
        newest = max((each.command.generation for each in self.model.of(jobs)), default=self.generation)
        generation = max(newest + self.rng.choice([0, 0, 0, -1, 1]), 1)
        reason = self.rng.choice(["preempted", "preempted", "node_lost", "withdrawn", "failed"])
        command = self.released(jobs, generation, reason)
        expected = self.model.objection(jobs, generation, assigns=False)
        objection = self.runner.validate(command)
        assert (objection and objection.kind) == expected
        if expected != "out_of_date":
            self.runner.apply(command)
            self.model.release(jobs, generation)

    def _disown(self) -> None:
        held = self.model.held
        if held:
            run_id = self.rng.choice(held)
            (each,) = (each for each in self.model.known if run_id in each.runs.values())
            (job_id,) = (job_id for job_id, run in each.runs.items() if run == run_id)
            self.runner.disown(run_id, job_id)
            each.is_released = True

    @staticmethod
    def run_of(command: Any, job_id: str) -> str:
        return f"{job_id}/{command.generation}"


class GangHistory(History):
    """Ranks that end with their job."""

    def start(self) -> ElasticRunner:
        nodes = elastic_nodes.Fleet(self.root, ElasticSettings(model_root=self.root, dataset_root=self.root))
        return ElasticRunner(nodes.context(NODE, self.reports), nodes.settings, GPUS)

    def jobs(self) -> list[str]:
        return [self.rng.choice(JOBS)]

    def assigned(self, jobs: Sequence[str], generation: int) -> Any:
        work = elastic_nodes.workload(16)
        return elastic_nodes.assigned(NODE, *jobs, generation, [(NODE, 1)], work, resumes=True)

    def released(self, jobs: Sequence[str], generation: int, reason: Any) -> Any:
        return elastic_nodes.released(NODE, jobs[0], generation, reason)

    def commands(self, rank: LightRank) -> Iterator[Any]:
        runs = [each for each in self.model.known if rank.order.run_id in each.runs.values()]
        yield from (each.command for each in runs)

    def restarted(self) -> None:
        for each in self.model.known:
            each.has_ended = True

    def act(self, rank: LightRank, what: str) -> None:
        if what == "die":
            rank.kill()
        elif what == "fail":
            rank.report(Failed(error="boom", permanent=False))
            rank.end(1)
        elif what == "finish":
            is_released = any(isinstance(each, Release) for each in rank.directives)
            reason = "stopped" if is_released else "finished"
            rank.report(Ended(reason=reason, samples_done=16, node_s=1.0, answers=not is_released))
            rank.end()
        else:
            generation = rank.order.membership.generation
            rank.report(Joined(generation=generation, samples_done=0, dataset_samples=None))
            rank.report(RankProgress(samples_done=8, node_s=1.0, leads=True))
        if not rank.is_alive:
            self._note_end(rank)

    def _note_end(self, rank: LightRank) -> None:
        for each in self.model.known:
            if rank.order.run_id in each.runs.values():
                each.has_ended = True


class TunerHistory(History):
    """Ranks that outlive their tasks."""

    def start(self) -> TunerRunner:
        settings = TunerSettings(base_model_dir=self.root, dataset_root=self.root)
        nodes: Nodes[TunerRunner, TunerSettings] = tuner_nodes.Fleet(self.root, settings)
        environment = RankEnvironment(
            cell=CELL,
            node=NODE,
            base_model=tuner_nodes.MODEL,
            state_root=self.root / "state",
            output_root=self.root / "output",
            settings={},
            gpu=0,
        )
        return TunerRunner(nodes.context(NODE, self.reports), settings, RankPool(environment, GPUS))

    def jobs(self) -> list[str]:
        return self.rng.sample(JOBS, self.rng.choice([1, 1, 2]))

    def assigned(self, jobs: Sequence[str], generation: int) -> Any:
        orders = [tuner_nodes.order(job_id, generation=generation) for job_id in jobs]
        mode: Any = "normal" if len(jobs) == 1 else self.rng.choice(["spatial", "temporal"])
        members = [(NODE, self.rng.randint(1, GPUS))]
        return tuner_nodes.assigned(NODE, *orders, mode=mode, generation=generation, members=members)

    def released(self, jobs: Sequence[str], generation: int, reason: Any) -> Any:
        return tuner_nodes.released(NODE, *jobs, generation=generation, reason=reason)

    def commands(self, rank: LightRank) -> Iterator[Any]:
        yield from (each.command for each in rank.directives if isinstance(each, TaskPart))

    def busy(self, rank: LightRank) -> list[Any]:
        over = [each.part for each in rank.directives if isinstance(each, Over)]
        parts = [each for each in rank.directives if isinstance(each, TaskPart) and each.part not in over]
        return [each.command for each in parts]

    def restarted(self) -> None:
        self.begun.clear()

    def advance(self) -> None:
        for rank in LightRank.all:
            if not rank.directives and not rank.is_indexer:
                rank.report(Ready())
        super().advance()

    def act(self, rank: LightRank, what: str) -> None:
        parts = [each for each in rank.directives if isinstance(each, TaskPart)]
        over = [each for each in rank.directives if isinstance(each, Over)]
        if what == "late" and over:
            self._report(rank, parts[0], RunProgressed, samples_done=6, node_s=1.0, complete=False)
        if len(parts) == len(over):
            return
        part = parts[len(over)]
        is_halted = any(isinstance(each, Halt) and each.part == part.part for each in rank.directives)
        if what == "die":
            rank.kill()
        elif what == "go on":
            self._report(rank, part, RunStarted, samples_done=0, dataset_samples=8)
        elif what in ("finish", "fail"):
            outcome: Any = "stopped" if is_halted else "finished" if what == "finish" else "failed"
            if outcome == "finished":
                result = {"loss": None, "adapter_path": "p", "adapter_digest": 64 * "0"}
                self._report(rank, part, RunFinished, samples_done=120, **result)
            elif outcome == "failed":
                self._report(rank, part, RunFailed, samples_done=0, error="boom", permanent=False)
            message = Over(part=part.part, outcome=outcome)
            rank.report(message)
            rank.directives.append(message)

    def _report(self, rank: LightRank, part: TaskPart, kind: type[RunReport], **fields: Any) -> None:
        """Have the leader report each run of a task."""
        for order in part.command.orders if part.membership.rank == 0 else ():
            place = {"cell": CELL, "node": NODE, "run_id": order.run_id, "job_id": order.job_id}
            rank.report(TaskReport.of(kind(**place, **fields), part=part.part))


@pytest.mark.parametrize("kind", [GangHistory, TunerHistory])
@pytest.mark.parametrize("seed", seeds(40))
def test_assignments_are_as_specified(
    kind: type[History], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_gang, "ForkedProcess", LightRank)
    monkeypatch.setattr(rank_pool, "ForkedProcess", LightRank)
    for number in range(HISTORIES):
        history = kind(random.Random(f"{seed}/{number}"), tmp_path / str(number))
        for _ in range(STEPS):
            history.step()
        history.settle()
