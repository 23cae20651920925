"""Gangs against their specification, in random histories of orders, reports, losses and restarts."""

import random
from collections.abc import Mapping, Set
from typing import Any, ClassVar

import pytest

from schemas.base import Outcome
from schemas.decisions import EventIgnored, JobCompleted, JobRefunded, JobWithdrawn
from schemas.facts import NO_FACTS, Fact
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from streams.cell.jobs import Job
from streams.cell.layout import Layout
from streams.cell.live_bytes import LiveBytes
from streams.cell.nodes import NodeChange, NodePool
from streams.cell.outcomes import Outcomes
from streams.cell.profiles import ProfileStore, ZoneProfiles
from streams.cell.states import from_state, state_of
from streams.policies.gang.gangs import Cause, Why
from streams.policies.gang.generation import Gang
from streams.policies.gang.single_job import SingleJobGangs
from streams.policies.policy import ZoneContext
from tests.streams.gang.specification import Specification
from tests.support.elastic import ElasticTerms, elastic_cell, workload
from tests.support.examples import seeds
from tests.support.twins import ZONE

NODES = ("a", "b", "c")
WORK_SAMPLES = 10
TIMEOUT_S = 100.0
STEPS = 40
STATE_BYTES = 1_000
HISTORIES = 200
"""For each seed."""
CELL = elastic_cell()
WORK = workload(WORK_SAMPLES)
PROGRESSED = {"node_s": 0.0, "complete": False}
COMPLETE = {"node_s": 0.0, "complete": True}
ENDS = {JobCompleted: "completed", JobRefunded: "refunded", JobWithdrawn: "withdrawn"}


class Changed(Outcome):
    """A gang has other processes."""

    TYPE: ClassVar = "test.gang.changed.v1"

    reason: str


class Released(Outcome):
    """A node is to end processes."""

    TYPE: ClassVar = "test.gang.released.v1"

    node: str
    generation: int


class CountedGang(Gang):
    """A gang of constant size."""

    @property
    def state_bytes(self) -> int:
        return STATE_BYTES


class LedGang(CountedGang):
    """A gang whose leader alone reports progress."""

    ALL_TRACK_PROGRESS = False


class ForgetfulGang(CountedGang):
    """A gang without checkpoints."""

    @property
    def keeps_progress(self) -> bool:
        return False


class PlainGangs(SingleJobGangs[CountedGang, str]):
    """Gangs of a policy that adds nothing."""

    def begin(self, job: CountedGang, members: tuple[str, ...]) -> None:
        """Begin the next generation, of one process on each node."""
        self._begin_generation(job, job.generation + 1, dict.fromkeys(members, 1))

    def _changed(self, job: CountedGang, width_before: int, why: Why[str]) -> Outcome:
        return Changed(reason=why.reason)

    def _released(self, job: CountedGang, node: str, generation: int, why: Why[str]) -> Outcome:
        return Released(node=node, generation=generation)

    def _why(self, job: CountedGang, cause: Cause, facts: Mapping[str, Fact] = NO_FACTS) -> Why[str]:
        return Why(cause, facts)


class History:
    """A random history of one job, and its specification."""

    def __init__(
        self, rng: random.Random, gang: type[CountedGang], gangs: type[PlainGangs] = PlainGangs
    ) -> None:
        self.rng = rng
        self.time_s = 0.0
        self.live = LiveBytes(10**9)
        self.outcomes = Outcomes()
        nodes = NodePool(Layout(CELL))
        context = ZoneContext(
            CELL,
            CELL.zones[0],
            {},
            self.live,
            nodes.loans,
            nodes,
            self.outcomes,
            ZoneProfiles(ProfileStore(), "z"),
        )
        self.gangs = gangs(context)
        self.orders = self.gangs.orders
        self.orders.timeout_s = TIMEOUT_S
        self.orders.advance(0.0)
        self.job = gang(Job("j", "u", ZONE, WORK, ElasticTerms()), 0)
        self.gangs.add(self.job)
        self.model = Specification(WORK_SAMPLES, gang.ALL_TRACK_PROGRESS, self.job.keeps_progress)
        self.released: set[tuple[str, int]] = set()
        """Orders to end processes."""
        self.ends: list[str] = []

    def step(self) -> None:
        """Something happens, mostly a report of processes that there are."""
        rng, model = self.rng, self.model
        node = rng.choice(model.in_force or NODES) if rng.random() < 0.7 else rng.choice(NODES)
        generation = model.generation - rng.choice([0, 0, 0, 0, 1, 2])
        samples = rng.choice([0, 3, 7, WORK_SAMPLES, WORK_SAMPLES])
        match rng.choice([*4 * ["report"], *3 * ["end"], "finish", "fail", "lose", "restart", "rare"]):
            case "report":
                of, fields = rng.choice([(RunStarted, {}), (RunProgressed, PROGRESSED)])
                if self._report(of, node, generation, samples, **fields):
                    model.progressed(node, generation, samples)
            case "end" if self._report(RunProgressed, node, generation, samples, **COMPLETE):
                model.ended(node, generation, samples)
            case "finish" if self._report(RunFinished, node, generation, WORK_SAMPLES):
                model.finished(node, generation, WORK_SAMPLES)
            case "fail":
                permanent = rng.random() < 0.1
                if self._report(RunFailed, node, generation, 0, error="boom", permanent=permanent):
                    model.failed(node, generation, permanent)
            case "lose":
                self._lose(NodeChange(node, "down"))
            case "restart":
                self._restart(node)
            case "rare":
                self._rarely()
        if model.may_begin and rng.random() < 0.8:
            self._begin()
        self._check()

    def _restart(self, node: str) -> None:
        """A node restarts, and continues some of its runs."""
        on_node = sorted(generation for other, generation in self.model.alive if other == node)
        kept = {generation for generation in on_node if self.rng.random() < 0.7}
        runs = (*(f"{generation}/j" for generation in kept), f"{self.model.generation}/other")
        self._lose(NodeChange(node, "restarted", runs=runs), kept)

    def _lose(self, change: NodeChange, kept: Set[int] = frozenset()) -> None:
        if self._is_kept:
            self.gangs.lose_node(change)
        self._pop_outcomes()
        self.model.lost(change.node, kept)

    def _rarely(self) -> None:
        match self.rng.choice(["withdraw", "preempt", "preempt", "silence", "restore", "restore"]):
            case "withdraw" if self.model.ending is None:
                self.gangs.withdraw(self.job)
                self._pop_outcomes()
                self.model.withdrawn()
            case "preempt" if self.model.in_force:
                self.gangs.preempt(self.job, NO_FACTS)
                self._pop_outcomes()
                self.model.preempted()
            case "silence":
                self._fall_silent()
            case "restore" if self._is_kept:
                self.job = from_state(type(self.job), state_of(self.job), {"j": self.job.job})
                self.gangs.jobs["j"] = self.job

    def _begin(self) -> None:
        members = tuple(self.rng.sample(NODES, self.rng.randint(1, len(NODES))))
        self.gangs.begin(self.job, members)
        self.model.begin(members)

    def _fall_silent(self) -> None:
        """Nothing is reported for as long as it takes to give everything up."""
        for _ in range(30):
            self.time_s += TIMEOUT_S / 5
            if self.orders.advance(self.time_s):
                self.gangs.give_up_silent()
                self._pop_outcomes()
        if self.model.in_force:
            self.model.failed(self.model.in_force[0], self.model.generation, permanent=False)
        self.model.alive = set()

    @property
    def _is_kept(self) -> bool:
        return "j" in self.gangs.jobs

    def _report(self, of: type[RunReport], node: str, generation: int, samples: int, **fields: Any) -> bool:
        """Report, and return whether it is to count."""
        if generation < 1 or not self._is_kept:
            return False
        report = of(cell="c", node=node, run_id=f"{generation}/j", job_id="j", samples_done=samples, **fields)
        counts = self.model.is_known(node, generation, of is RunFinished)
        ended = {(node, generation)} if report.ends_run else set()
        self.gangs.report(self.job, report)
        outcomes = self._pop_outcomes(ended)
        assert any(isinstance(each, EventIgnored) for each in outcomes) == (not counts)
        return counts

    def _pop_outcomes(self, ended: Set[tuple[str, int]] = frozenset()) -> list[Outcome]:
        """Note decisions, on a report that some processes have ended."""
        taken = self.outcomes.drain()
        orders = [(each.node, each.generation) for each in taken if isinstance(each, Released)]
        assert len(set(orders)) == len(orders)
        assert set(orders) <= self.model.alive - ended, "nobody is ordered to end what has ended"
        self.released |= set(orders)
        self.ends += [ENDS[type(each)] for each in taken if type(each) in ENDS]
        return taken

    def _check(self) -> None:
        model, job = self.model, self.job
        assert self.ends == ([model.ending] if model.is_over else [])
        assert self._is_kept == (not model.is_over)
        assert self.live.total == STATE_BYTES * self._is_kept
        assert tuple(job.members) == model.in_force
        kept = {(node, leaving.generation) for node, leaving in job.leaving.items()}
        assert kept | {(node, job.generation) for node in job.working} == model.alive
        assert job.waits == model.may_begin
        progress = (job.job.samples_done, job.furthest_samples, job.failures)
        assert progress == (model.samples_done, model.furthest_samples, model.failures)
        to_end = {process for process in model.alive if process[0] not in model.in_force}
        assert model.ending == "completed" or to_end <= self.released, "who is to end is ordered to"


@pytest.mark.parametrize("gang", [CountedGang, LedGang, ForgetfulGang])
@pytest.mark.parametrize("seed", seeds(80))
def test_gangs_are_as_specified(gang: type[CountedGang], seed: int) -> None:
    ends = set()
    for number in range(HISTORIES):
        history = History(random.Random(f"{seed}/{number}"), gang)
        for _ in range(STEPS):
            history.step()
        ends |= set(history.ends)
    assert ends == {"completed", "refunded", "withdrawn"}
