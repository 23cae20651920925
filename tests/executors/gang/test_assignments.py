"""The assignments of a node whose ranks outlive them against their specification, in random histories: newer
generations, releases, lost ranks, late reports and restarts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from executors.tuner import rank_pool
from executors.tuner.files import JobFiles, JobPosition, JobProgress
from executors.tuner.messages import Halt, Over, RankEnvironment, Ready, TaskPart, TaskReport
from executors.tuner.rank_pool import RankPool
from executors.tuner.runner import TunerRunner
from executors.tuner.settings import TunerSettings
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.commands import JobOrder
from tests.executors.gang.light_ranks import LightRank
from tests.support import tuner_nodes
from tests.support.examples import seeds
from tests.support.nodes import CELL, Nodes, is_end

NODE = "n1"
GPUS = 2
JOBS = ("a", "b", "c")
STEPS = 60
HISTORIES = 10
"""For each seed."""
ROUNDS = 20
REASONS = ("preempted", "reallocated", "node_lost", "undone", "withdrawn", "failed")
WEIGHTS = {"withdrawn": 2, "failed": 2, "undone": 1}
"""A release replaces one of at most its weight."""

Saved = tuple[int, int]
"""Generation and samples of a checkpoint."""


@dataclass
class Assigned:
    """An assignment that was accepted."""

    command: Any
    runs: dict[str, str]
    """Runs whose end is not reported, by job."""
    jobs: frozenset[str]
    ending: tuple[str, frozenset[str]] | None = None
    """Reason of its end, and the jobs that it is about."""
    is_lost: bool = False
    """Whether a rank has ended without an order."""
    is_busy: bool = False
    """Whether ranks still have it, though the ends of its runs may be reported."""
    is_over: bool = False

    def end(self, reason: str, jobs: frozenset[str]) -> None:
        if self.ending is None or WEIGHTS.get(reason, 0) >= WEIGHTS.get(self.ending[0], 0):
            self.ending = reason, jobs

    def stop(self, reason: str) -> None:
        """The node ends it, unless its end is ordered."""
        if self.ending is None:
            self.ending = reason, self.jobs


@dataclass
class Specification:
    """The assignments of a node, from what was ordered and reported alone."""

    known: list[Assigned] = field(default_factory=list)
    """All by arrival."""
    saved: dict[str, Saved] = field(default_factory=dict)
    """Newest checkpoint by job."""

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
            each.stop("newer")
        self.known.append(Assigned(command, runs, frozenset(runs)))

    def release(self, jobs: Sequence[str], generation: int, reason: str) -> None:
        """The cell orders the end of assignments; of jobs without any here, files are removed."""
        for each in self.of(jobs):
            if each.command.generation <= generation:
                each.end(reason, frozenset(jobs))
        for job_id in jobs:
            if not self.of([job_id]):
                self.settle(job_id, generation, (reason, frozenset(jobs)))

    def settle(self, job_id: str, generation: int, ending: tuple[str, frozenset[str]]) -> int:
        """Remove the files of a job, if the reason demands it; return the samples that are kept."""
        reason, jobs = ending
        token, samples = self.saved.get(job_id, (0, 0))
        is_undone = reason == "undone" and token <= generation
        if job_id in jobs and (WEIGHTS.get(reason) == 2 or is_undone):
            self.saved.pop(job_id, None)
            return 0
        return samples

    def report(self, report: RunReport) -> None:
        """A run is reported until its end, and no more after it."""
        (each,) = (each for each in self.known if report.run_id in each.runs.values())
        if is_end(report):
            del each.runs[report.job_id]

    def conclude(self) -> list[tuple[str, int]]:
        """Settle what ranks have ended as ordered. Returns the runs whose ends the node reports, with the
        samples that are kept."""
        ends = []
        for each in self.known:
            if each.ending is None or each.is_busy or each.is_over:
                continue
            each.is_over = True
            for order in each.command.orders:
                samples = self.settle(order.job_id, each.command.generation, each.ending)
                if each.runs.pop(order.job_id, None) is not None:
                    ends.append((order.run_id, samples))
        return ends

    @property
    def held(self) -> list[str]:
        """Runs that the node continues."""
        going_on = [each for each in self.known if each.ending is None and not each.is_over]
        return sorted(run_id for each in going_on for run_id in each.runs.values())

    def begins(self, command: Any) -> None:
        """An assignment gets a rank: nothing before it is open of its jobs."""
        (begun,) = (each for each in self.known if each.command == command)
        assert self.of([*begun.jobs])[0] is begun


class History:
    """A random history of one node, and its specification."""

    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng, self.root = rng, root
        self.model, self.generation = Specification(), 0
        self.begun: set[int] = set()
        """Generations whose ranks were seen."""
        self.files = JobFiles(root / "state", CELL)
        self.reports: list[RunReport] = []
        self.runner = self.start()

    def start(self) -> TunerRunner:
        LightRank.all.clear()
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

    @property
    def ranks(self) -> list[LightRank]:
        return [rank for rank in LightRank.all if rank.is_alive and not rank.is_indexer]

    def step(self) -> None:
        rng = self.rng
        what = rng.choices(["assign", "release", "disown", "act", "advance", "restart"], [6, 4, 1, 12, 12, 1])
        match what[0]:
            case "assign":
                self._assign()
            case "release":
                self._release()
            case "disown":
                self._disown()
            case "act" if self.ranks:
                action = rng.choice(["go on", "go on", "save", "finish", "fail", "die", "late"])
                self.act(rng.choice(self.ranks), action)
            case "advance":
                self.advance()
            case "restart":
                self.advance()
                state = self.runner.state()
                self.runner = self.start()
                if state is not None:
                    self.runner.restore(state)
                self.begun.clear()
                self.advance()

    def advance(self) -> None:
        """The node processes what its ranks have sent."""
        for rank in LightRank.all:
            if not rank.directives and not rank.is_indexer:
                rank.emit(Ready())
        self.runner.advance()
        for each in self.model.known:
            each.is_busy = any(each.command in _unfinished(rank) for rank in self.ranks)
        reports, self.reports[:] = list(self.reports), []
        ends = [each for each in reports if isinstance(each, RunProgressed) and each.complete]
        for report in reports:
            if isinstance(report, RunFailed):
                saved = self.model.saved.get(report.job_id, (0, 0))
                assert report.samples_done == (0 if report.error == "boom" else saved[1])
                (each,) = (each for each in self.model.known if report.run_id in each.runs.values())
                assert report.error == "boom" or each.ending is None
            if report not in ends:
                self.model.report(report)
        assert [(each.run_id, each.samples_done) for each in ends] == self.model.conclude()
        self._check()

    def _check(self) -> None:
        for rank in self.ranks:
            for part in _parts(rank):
                if part.command.generation not in self.begun:
                    self.model.begins(part.command)
                    self.begun.add(part.command.generation)
                (each,) = (each for each in self.model.known if each.command == part.command)
                if part.command in _unfinished(rank):
                    assert _is_halted(rank, part) == (each.ending is not None or each.is_lost)
        lost = [each for each in self.model.known if each.is_lost and each.ending is None]
        assert not any(each.runs for each in lost), "their failure is reported"
        assert sorted(self.runner.held_runs()) == self.model.held
        for job_id in JOBS:
            newest = self.files.newest(job_id)
            saved = None if newest is None else (newest.token, newest.samples_done)
            assert saved == self.model.saved.get(job_id)

    def settle(self) -> None:
        """Ranks end their work, until nothing is left."""
        for _ in range(ROUNDS):
            self.advance()
            for rank in self.ranks:
                self.act(rank, "finish")
        self.advance()
        assert self.runner.is_idle
        assert not self.model.of(JOBS), "the end of each run is reported"

    # Commands

    def _jobs(self) -> list[str]:
        return self.rng.sample(JOBS, self.rng.choice([1, 1, 2]))

    def _assign(self) -> None:
        rng, jobs, stale = self.rng, self._jobs(), self.rng.random() < 0.2
        self.generation += 1
        generation = max(self.generation - rng.randint(1, 4), 1) if stale else self.generation
        orders = [tuner_nodes.order(job_id, generation=generation) for job_id in jobs]
        mode: Any = "normal" if len(jobs) == 1 else rng.choice(["spatial", "temporal"])
        members = [(NODE, rng.randint(1, GPUS))]
        command = tuner_nodes.assigned(NODE, *orders, mode=mode, generation=generation, members=members)
        expected = self.model.objection(jobs, generation, assigns=True)
        is_known = any(each.command == command for each in self.model.known)
        if stale and (expected is None or is_known):
            return
        objection = self.runner.validate(command)
        assert (objection and objection.kind) == expected
        if objection is None:
            self.runner.apply(command)
            self.model.assign(command, {order.job_id: order.run_id for order in orders})
            if rng.random() < 0.2:
                self.runner.apply(command)  # a duplicate changes nothing

    def _release(self) -> None:
        jobs = self.rng.choice([self._jobs(), *(sorted(each.jobs) for each in self.model.of(JOBS))])
        newest = max((each.command.generation for each in self.model.of(jobs)), default=self.generation)
        generation = max(newest + self.rng.choice([0, 0, 0, -1, 1]), 1)
        reason: Any = self.rng.choice(REASONS)
        command = tuner_nodes.released(NODE, *jobs, generation=generation, reason=reason)
        expected = self.model.objection(jobs, generation, assigns=False)
        objection = self.runner.validate(command)
        assert (objection and objection.kind) == expected
        if expected != "out_of_date":
            self.runner.apply(command)
            self.model.release(jobs, generation, reason)

    def _disown(self) -> None:
        held = self.model.held
        if held:
            run_id = self.rng.choice(held)
            (each,) = (each for each in self.model.known if run_id in each.runs.values())
            (job_id,) = (job_id for job_id, run in each.runs.items() if run == run_id)
            self.runner.disown(run_id, job_id)
            each.stop("disowned")

    # Ranks

    def act(self, rank: LightRank, what: str) -> None:
        """Have a rank do something, if it has work."""
        parts, over = _parts(rank), [each for each in rank.directives if isinstance(each, Over)]
        if what == "late" and over:
            self._report(rank, parts[0], RunProgressed, samples_done=6, node_s=1.0, complete=False)
        if len(parts) == len(over):
            return
        part = parts[len(over)]
        if what == "die":
            rank.kill()
            for each in self.model.known:
                each.is_lost |= each.command in [left.command for left in parts[len(over) :]]
        elif what == "go on":
            self._report(rank, part, RunStarted, samples_done=0, dataset_samples=8)
        elif what == "save" and part.membership.rank == 0:
            for order in part.command.orders:
                self._save(order, part.command.generation)
        elif what in ("finish", "fail"):
            is_halted = _is_halted(rank, part)
            outcome: Any = "stopped" if is_halted else "finished" if what == "finish" else "failed"
            if outcome == "finished":
                result = {"loss": None, "adapter_path": "p", "adapter_digest": 64 * "0"}
                self._report(rank, part, RunFinished, samples_done=120, **result)
            elif outcome == "failed":
                self._report(rank, part, RunFailed, samples_done=0, error="boom", permanent=False)
            message = Over(part=part.part, outcome=outcome)
            rank.emit(message)
            rank.directives.append(message)

    def _save(self, order: JobOrder, generation: int) -> None:
        """Have a rank write a checkpoint, unless a later generation has written one."""
        token, samples = self.model.saved.get(order.job_id, (0, 0))
        if token > generation:
            return
        position = JobPosition(job_id=order.job_id, iterations=1, drawn=samples + 6)
        about = JobProgress(
            workload=order.workload, position=position, partner=None, merged_at=0, beside=None
        )
        self.files.write(order.job_id, generation, samples + 6, {}, about)
        self.model.saved[order.job_id] = generation, samples + 6

    def _report(self, rank: LightRank, part: TaskPart, kind: type[RunReport], **fields: Any) -> None:
        """Have the leader report each run of a task."""
        for order in part.command.orders if part.membership.rank == 0 else ():
            place = {"cell": CELL, "node": NODE, "run_id": order.run_id, "job_id": order.job_id}
            rank.emit(TaskReport.of(kind(**place, **fields), part=part.part))


def _parts(rank: LightRank) -> list[TaskPart]:
    """Return the parts of a rank, in order."""
    return [each for each in rank.directives if isinstance(each, TaskPart)]


def _unfinished(rank: LightRank) -> list[Any]:
    """Return the commands whose work a rank has not ended, though it may have reported it."""
    over = [each.part for each in rank.directives if isinstance(each, Over)]
    return [each.command for each in _parts(rank) if each.part not in over]


def _is_halted(rank: LightRank, part: TaskPart) -> bool:
    return any(isinstance(each, Halt) and each.part == part.part for each in rank.directives)


@pytest.mark.parametrize("seed", seeds(40))
def test_assignments_are_as_specified(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_pool, "ForkedProcess", LightRank)
    for number in range(HISTORIES):
        history = History(random.Random(f"{seed}/{number}"), tmp_path / str(number))
        for _ in range(STEPS):
            history.step()
        history.settle()


def test_failed_task_is_not_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_pool, "ForkedProcess", LightRank)
    history = History(random.Random(0), tmp_path)
    history.advance()
    history.runner.apply(tuner_nodes.assigned(NODE, tuner_nodes.order("a"), members=[(NODE, GPUS)]))
    history.runner.advance()
    history.ranks[0].kill()
    history.runner.advance()
    assert [type(report) for report in history.reports] == [RunFailed]
    state = history.runner.state()
    assert state is not None, "the other rank has still to end"
    history.runner = history.start()
    history.runner.restore(state)
    history.runner.advance()
    assert history.runner.is_idle
