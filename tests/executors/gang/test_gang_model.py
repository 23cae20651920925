"""The runners of gangs against their specification, in random histories of a node with several ranks for each
job: newer generations, releases, failures, lost ranks, late reports and restarts."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from executors.elastic.runner import ElasticRunner
from executors.elastic.settings import ElasticSettings
from executors.gang import local_gang
from executors.gang.messages import Ended, Failed, Joined, RankProgress, Release
from executors.gang.runner import GangRunner
from executors.moe.runner import MoeRunner
from executors.moe.settings import MoeSettings
from executors.node.places import checkpoint_root, job_folder
from executors.settings import JobSettings
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from tests.executors.gang.gang_specification import (
    Ends,
    Failure,
    GangsSpecification,
    Joins,
    Reported,
    SpecifiedGang,
    SpecifiedRank,
)
from tests.executors.gang.light_ranks import LightRank
from tests.small_gang.kind import LineAssigned, LineReleased, LineWorkload
from tests.small_gang.runner import LineRunner
from tests.support import elastic_nodes, moe_nodes
from tests.support.examples import seeds
from tests.support.nodes import CELL, Members, Nodes

NODE = "n1"
GPUS = 3
JOBS = ("a", "b", "c")
WORK_SAMPLES = 16
STEPS = 80
HISTORIES = 50
"""For each seed."""
ROUNDS = 20
EVENTS = {
    "assign": 8,
    "release": 4,
    "disown": 1,
    "obey": 16,
    "act": 10,
    "advance": 8,
    "wait": 4,
    "full": 1,
    "restart": 1,
    "stop": 1,
}
"""Weights of what happens."""
ACTIONS = ("join", *2 * ("progress",), *2 * ("finish",), "stop", *2 * ("left",), *2 * ("fail",), "die")


@dataclass
class ManualClock:
    """A clock that the history sets."""

    now_s: float = 1_000.0

    def time_s(self) -> float:
        return self.now_s


class RunnerUnderTest(ABC):
    """A runner of gangs: how it is started, and its commands."""

    RUNNER: ClassVar[type[GangRunner[Any]]]
    VERDICTS: ClassVar[Mapping[str, Any]] = {
        "withdrawn": "discard",
        "failed": "discard",
        "node_lost": "stop",
        "preempted": "stop",
    }
    """Ends of ranks by the reason of a release, as the runner's page has them."""
    REPEATS: ClassVar[bool] = True
    """Whether progress is reported though no more samples are done."""

    @abstractmethod
    def nodes(self, root: Path) -> Nodes[Any, Any]:
        """Return nodes with the runner's settings."""

    @abstractmethod
    def assigned(self, rng: random.Random, job_id: str, generation: int, members: Members) -> Any:
        """Return a command."""

    @abstractmethod
    def released(self, job_id: str, generation: int, reason: Any, by_s: float | None) -> Any:
        """Return the command that ends it."""

    def keeps(self, command: Any) -> bool:
        """Return whether a job keeps checkpoints."""
        return True

    def continues(self, command: Any) -> bool:
        """Return whether present ranks continue in the generation of a command."""
        return False


class ElasticUnderTest(RunnerUnderTest):
    """Ranks that continue in newer generations, of jobs with and without checkpoints."""

    RUNNER = ElasticRunner
    VERDICTS: ClassVar = {**RunnerUnderTest.VERDICTS, "scaled_in": "leave"}
    REPEATS = False

    def nodes(self, root: Path) -> Nodes[Any, Any]:
        return elastic_nodes.Fleet(root, ElasticSettings(model_root=root, dataset_root=root))

    def assigned(self, rng: random.Random, job_id: str, generation: int, members: Members) -> Any:
        work = elastic_nodes.workload(WORK_SAMPLES, keeps=job_id == JOBS[0])
        return elastic_nodes.assigned(
            NODE,
            job_id,
            generation,
            members,
            work,
            resumes=rng.random() < 0.4,
            resume_samples=rng.choice([0, 8]),
        )

    def released(self, job_id: str, generation: int, reason: Any, by_s: float | None) -> Any:
        return elastic_nodes.released(NODE, job_id, generation, reason, by_s)

    def keeps(self, command: Any) -> bool:
        return bool(command.workload.keeps_checkpoints)

    def continues(self, command: Any) -> bool:
        return not command.resumes


class MoeUnderTest(RunnerUnderTest):
    """Ranks that end with their generation."""

    RUNNER = MoeRunner
    VERDICTS: ClassVar = {**RunnerUnderTest.VERDICTS, "ended": "stop"}

    def nodes(self, root: Path) -> Nodes[Any, Any]:
        return moe_nodes.Fleet(root, MoeSettings(model_root=root, dataset_root=root))

    def assigned(self, rng: random.Random, job_id: str, generation: int, members: Members) -> Any:
        work = moe_nodes.training(sum(ranks for _, ranks in members), WORK_SAMPLES)
        return moe_nodes.assigned(
            NODE, job_id, members, work, generation=generation, resume_samples=rng.choice([0, 8])
        )

    def released(self, job_id: str, generation: int, reason: Any, by_s: float | None) -> Any:
        return moe_nodes.RanksReleased(
            zone="z", node=NODE, job_id=job_id, generation=generation, reason=reason
        )


class LineNodes(Nodes[LineRunner, JobSettings]):
    """Nodes with the runner of the small gang."""

    EXECUTOR: ClassVar = {"runners": ("line",)}


class LineUnderTest(RunnerUnderTest):
    """The base alone."""

    RUNNER = LineRunner

    def nodes(self, root: Path) -> Nodes[Any, Any]:
        return LineNodes(root, JobSettings(model_root=root, dataset_root=root))

    def assigned(self, rng: random.Random, job_id: str, generation: int, members: Members) -> Any:
        return LineAssigned(
            zone="z",
            node=NODE,
            run_id=f"{generation}/{job_id}",
            job_id=job_id,
            user="u",
            generation=generation,
            members=tuple(members),
            resume_samples=rng.choice([0, 8]),
            workload=LineWorkload(work_samples=WORK_SAMPLES),
        )

    def released(self, job_id: str, generation: int, reason: Any, by_s: float | None) -> Any:
        return LineReleased(zone="z", node=NODE, job_id=job_id, generation=generation, reason=reason)


class GangHistory:
    """A random history of one node, and its specification."""

    def __init__(self, rng: random.Random, kind: RunnerUnderTest, root: Path) -> None:
        self.rng, self.kind = rng, kind
        self.fleet, self.clock = kind.nodes(root), ManualClock()
        self.reports: list[RunReport] = []
        self.generation = 0
        settings = self.fleet.settings
        self.model = GangsSpecification(
            NODE,
            GPUS,
            kind.VERDICTS,
            settings.release_grace_s,
            settings.stop_grace_s,
            free_gpus=list(range(GPUS)),
        )
        self.runner = self.start()

    def start(self) -> GangRunner[Any]:
        LightRank.all.clear()
        context = replace(self.fleet.context(NODE, self.reports), clock=self.clock)
        return self.kind.RUNNER(context, self.fleet.settings, GPUS)

    def step(self) -> None:
        (event,) = self.rng.choices([*EVENTS], [*EVENTS.values()])
        match event:
            case "assign":
                self._assign()
            case "release":
                self._release()
            case "disown":
                self._disown()
            case "obey":
                self._act("obey" if self.rng.random() < 0.8 else "progress")
            case "act":
                self._act(self.rng.choice(ACTIONS))
            case "advance":
                self.advance()
            case "wait":
                self.clock.now_s += self.rng.choice([1.0, 16.0, 65.0])
                self.advance()
            case "full":
                LightRank.has_room = self.model.has_room = False
                self.advance()
                LightRank.has_room = self.model.has_room = True
            case "restart":
                self._restart()
            case "stop":
                self._stop()
        self._check()

    def settle(self) -> None:
        """Ranks end their work, until nothing is left."""
        for _ in range(ROUNDS):
            for place in range(len(LightRank.all)):
                self._act("finish", place)
            self.advance()
        self._check()
        assert self.runner.is_idle
        assert not self.model.gangs, "the end of each run is reported"

    def advance(self) -> None:
        self.runner.advance()
        self.model.advance(self.clock.now_s)
        self._check()

    def _check(self) -> None:
        model = self.model
        assert [_reported(report) for report in self.reports] == model.reports
        self.reports.clear()
        model.reports.clear()
        assert len(LightRank.all) == len(model.ranks)
        for light, rank in zip(LightRank.all, model.ranks, strict=True):
            assert light.order.gpu == rank.gpu
            assert [
                _directive(each) for each in (light.order.membership, *light.directives)
            ] == rank.directives
            assert (light.is_alive, light.exit_code == -9) == (rank.is_alive, rank.is_killed)
        assert sorted(self.runner.held_runs()) == model.held
        assert self.runner.is_idle == (not model.gangs)
        for job_id in JOBS:
            assert [path.exists() for path in self._folders(job_id)] == 2 * [job_id in model.files]

    def _folders(self, job_id: str) -> list[Path]:
        root = self.fleet.root / "state"
        return [checkpoint_root(root, CELL) / job_id, job_folder(root, CELL, job_id)]

    # Commands

    def _members(self) -> Members:
        """Draw the nodes of a generation: this one, or another one too, which may lead."""
        here = (NODE, self.rng.choice([1, 1, 2, GPUS]))
        return self.rng.choice([[here], [here], [here, ("n2", 1)], [("n2", 1), here]])

    def _assign(self) -> None:
        rng, job_id, is_stale = self.rng, self.rng.choice(JOBS), self.rng.random() < 0.2
        newest = self.model.newest(job_id)
        if is_stale and newest is None:
            return
        self.generation += 1
        generation = max((newest or 0) - rng.choice([0, 0, 1]), 1) if is_stale else self.generation
        members = self._members()
        command = self.kind.assigned(rng, job_id, generation, members)
        if is_stale and any(gang.command == command for gang in self.model.of(job_id)):
            return
        objection = self.runner.validate(command)
        assert (objection and objection.kind) == ("out_of_date" if is_stale else None)
        if is_stale:
            return
        self.runner.apply(command)
        samples = command.resume_samples
        keeps = self.kind.keeps(command)
        gang = SpecifiedGang(command, members, keeps, self.kind.REPEATS, samples, reported_samples=samples)
        self.model.assign(gang, members, self.clock.now_s, self.kind.continues(command))
        if rng.random() < 0.2:
            assert self.runner.validate(command) is None
            self.runner.apply(command)  # a duplicate changes nothing

    def _release(self) -> None:
        rng, job_id = self.rng, self.rng.choice(JOBS)
        newest = self.model.newest(job_id)
        generation = max((newest or self.generation) + rng.choice([0, 0, 0, 0, -1, 1]), 1)
        by_s = rng.choice([None, self.clock.now_s + 10.0])
        command = self.kind.released(job_id, generation, rng.choice([*self.kind.VERDICTS]), by_s)
        expected = "unknown_run" if newest is None else "out_of_date" if generation < newest else None
        objection = self.runner.validate(command)
        assert (objection and objection.kind) == expected
        if expected != "out_of_date":
            self.runner.apply(command)
            by_s = getattr(command, "by_s", None)
            deadline_s = self.clock.now_s + self.model.release_grace_s if by_s is None else by_s
            self.model.release(job_id, generation, command.reason, deadline_s)

    def _disown(self) -> None:
        if runs := self.model.held:
            run_id = self.rng.choice(runs)
            (job_id,) = (each.command.job_id for each in self.model.gangs if each.command.run_id == run_id)
            self.runner.disown(run_id, job_id)
            self.model.disown(run_id)

    def _restart(self) -> None:
        """The node's process is killed with its ranks, and begins again."""
        state = self.runner.state()
        assert (state is None) == (not self.model.gangs and not self.model.restored)
        self.runner = self.start()
        if state is not None:
            self.runner.restore(state)
        self.model.restart()
        if self.rng.random() < 0.3:
            self._restart()

    def _stop(self) -> None:
        """The node stops, and waits until its ranks have ended as ordered."""
        self.advance()
        self.model.close(self.clock.now_s)
        LightRank.obeys = True
        self.runner.close("node_stops")
        LightRank.obeys = False
        for rank in self.model.ranks:
            if rank.is_alive:
                self._emit(rank, ("ended", "stopped", 0, False))
                rank.is_alive = False
        while self.model.gangs:
            self.model.advance(self.clock.now_s)
        self._check()
        assert self.runner.state() is None
        self.runner = self.start()
        self.model.restart()

    # Ranks

    def _act(self, what: str, place: int | None = None) -> None:
        """Have a rank do something."""
        rng, model = self.rng, self.model
        alive = [each for each, rank in enumerate(model.ranks) if rank.is_alive and place in (None, each)]
        if not alive:
            return
        place = rng.choice(alive)
        light, rank = LightRank.all[place], model.ranks[place]
        newest = [each for each in rank.directives if isinstance(each, Joins)][-1]
        samples = rng.choice([0, 4, 8, WORK_SAMPLES])
        leads = newest.rank == 0
        permanent, by_peer = rng.random() < 0.3, rng.random() < 0.5
        if what == "obey":
            verdict = getattr(rank.directives[-1], "verdict", None)
            # A rank may have finished or failed before it receives its release.
            ended = rng.choice(["stop", "finish", "fail"])
            left = rng.choice(["left", "left", "stop"])
            what = "join" if verdict is None else left if verdict == "leave" else ended
        match what:
            case "join":
                self._emit(rank, ("joined", newest.generation, samples))
                light.emit(Joined(generation=newest.generation, samples_done=samples, dataset_samples=None))
                for folder in self._folders(light.order.job_id):
                    folder.mkdir(parents=True, exist_ok=True)
                model.files.add(light.order.job_id)
            case "progress":
                self._emit(rank, ("progressed", samples, leads))
                light.emit(RankProgress(samples_done=samples, node_s=1.0, leads=leads))
            case "fail":
                self._emit(rank, ("failed", Failure(permanent, by_peer)))
                light.emit(Failed(error="boom", permanent=permanent, cause="peer" if by_peer else "own"))
            case "finish" | "stop" | "left":
                reason: Any = {"finish": "finished", "stop": "stopped", "left": "left"}[what]
                answers = leads and what == "finish"
                samples = WORK_SAMPLES if what == "finish" else samples
                self._emit(rank, ("ended", reason, samples, answers))
                light.emit(Ended(reason=reason, samples_done=samples, node_s=1.0, answers=answers))
        if what not in ("join", "progress"):
            light.end(1)
            rank.is_alive = False

    @staticmethod
    def _emit(rank: SpecifiedRank, message: Sequence[Any]) -> None:
        rank.outbox.append(message)


def _reported(report: RunReport) -> Reported:
    match report:
        case RunStarted():
            return Reported(report.run_id, "started", report.samples_done)
        case RunFinished():
            return Reported(report.run_id, "finished", report.samples_done)
        case RunFailed():
            return Reported(report.run_id, "failed", report.samples_done, report.permanent)
    assert isinstance(report, RunProgressed)
    return Reported(report.run_id, "over" if report.complete else "progressed", report.samples_done)


def _directive(message: Any) -> Joins | Ends:
    if isinstance(message, Release):
        return Ends(message.verdict)
    return Joins(message.generation, message.rank, message.world)


@pytest.mark.parametrize("kind", [ElasticUnderTest, MoeUnderTest, LineUnderTest])
@pytest.mark.parametrize("seed", seeds(16))
def test_gangs_of_a_node_are_as_specified(
    kind: type[RunnerUnderTest], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_gang, "ForkedProcess", LightRank)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    for number in range(HISTORIES):
        history = GangHistory(random.Random(f"{seed}/{number}"), kind(), tmp_path / str(number))
        for _ in range(STEPS):
            history.step()
        history.settle()
