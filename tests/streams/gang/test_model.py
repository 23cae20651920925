"""Gangs of each policy against their specification, in random histories of two jobs: orders, other sizes,
reports, losses, silence and restarts."""

import random
from collections import Counter
from collections.abc import Set
from typing import Any

import pytest

from schemas.base import Outcome
from schemas.decisions import EventIgnored, JobCompleted, JobRefunded, JobWithdrawn
from schemas.facts import NO_FACTS
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from streams.cell.nodes import NodeChange
from streams.policies.gang.generation import Gang
from tests.streams.gang.policies import (
    COMPLETE,
    PROGRESSED,
    TIMEOUT_S,
    WORK_SAMPLES,
    Elastic,
    Experts,
    Forgetful,
    Led,
    Plain,
    Policy,
)
from tests.streams.gang.specification import Decided, Specification
from tests.support.examples import seeds

STEPS = 60
HISTORIES = 60
"""For each seed."""
MOST_JOBS = 2
TICK_S = TIMEOUT_S / 10
ENDS = {JobCompleted: "completed", JobRefunded: "refunded", JobWithdrawn: "withdrawn"}
EVENTS = {
    "report": 8,
    "end": 6,
    "finish": 2,
    "fail": 2,
    "refuse": 1,
    "lose": 1,
    "restart": 2,
    "tick": 4,
    "silence": 1,
    "resize": 6,
    "preempt": 1,
    "withdraw": 1,
    "expire": 1,
    "restore": 1,
}
"""Weights of what happens."""


class History:
    """A random history of a policy's jobs, and their specification."""

    def __init__(self, rng: random.Random, policy: Policy) -> None:
        self.rng, self.policy = rng, policy
        self.time_s = 0.0
        self.submitted = 0
        self.models: dict[str, Specification] = {}
        """Specifications of the jobs that are not over."""
        self.ends: Counter[str] = Counter()
        self.causes: set[str] = set()
        self.widths: dict[str, int] = {}
        """Number of processes by job, before the present event."""
        for _ in range(MOST_JOBS):
            self._submit()

    @property
    def gangs(self) -> Any:
        return self.policy.gangs

    def step(self) -> None:
        """Something happens, mostly a report of processes that there are."""
        rng = self.rng
        if len(self.models) < MOST_JOBS and rng.random() < 0.3:
            self._submit()
        if self.models:
            ((event,), job_id) = rng.choices([*EVENTS], [*EVENTS.values()]), rng.choice([*self.models])
            had = [(model, model.nodes) for model in self.models.values()]
            self.gangs.has_changed = False
            self._happen(event, self.gangs.jobs[job_id], self.models[job_id])
            is_freed = any(not nodes <= model.nodes for model, nodes in had)
            assert self.gangs.has_changed or not is_freed or event == "resize"
        for job_id, model in self.models.items():
            if model.may_begin and model.retry_s <= self.time_s and rng.random() < 0.8:
                self._begin(self.gangs.jobs[job_id], model)

    def _happen(self, event: str, job: Gang, model: Specification) -> None:
        rng = self.rng
        likely = sorted(model.done) if rng.random() < 0.4 else model.in_force
        node = rng.choice(likely or self.policy.NODES)
        generation = model.generation - rng.choice([0, 0, 0, 1, 2])
        if rng.random() < 0.5 and model.alive:
            node, generation = rng.choice(sorted(model.alive))
        elif rng.random() < 0.3:
            node = rng.choice(self.policy.NODES)
        samples = rng.choice([0, 3, 7, WORK_SAMPLES, WORK_SAMPLES + 3])
        match event:
            case "report":
                of, fields = rng.choice([(RunStarted, {}), (RunProgressed, PROGRESSED)])
                if self._report(job, model, of, node, generation, samples, **fields):
                    model.progressed(node, generation, samples)
                    starts = of is RunStarted and node in job.members
                    model.seen(node, generation, self.policy.quiet_s(job) if starts else 0.0)
            case "end":
                if self._report(job, model, RunProgressed, node, generation, samples, **COMPLETE):
                    model.ended(node, generation, samples)
            case "finish":
                if self._report(job, model, RunFinished, node, generation, WORK_SAMPLES):
                    model.finished(node, generation, WORK_SAMPLES)
            case "fail" | "refuse":
                refused = event == "refuse"
                fields = {"error": "boom", "permanent": not refused and rng.random() < 0.1}
                if self._report(job, model, RunFailed, node, generation, 0, refused, **fields):
                    model.failed(node, generation, fields["permanent"], backs_off=refused)
            case "lose":
                self._lose(NodeChange(node, "down"))
            case "restart":
                self._restart(node)
            case "tick":
                self._tick()
            case "silence":
                for _ in range(rng.choice([10, 12, 25])):
                    self._tick()
            case "resize" if model.in_force:
                cause = self.policy.resize(rng, job)
                if cause == "preempted":
                    model.preempted()
                elif cause is not None:
                    model.resize([*job.members], cause)
            case "preempt":
                self.gangs.preempt(job, NO_FACTS)
                model.preempted()
            case "expire" if self.policy.expire(job):
                model.expired()
            case "withdraw":
                is_ending = model.ending is not None
                self.gangs.withdraw(job)
                model.withdrawn()
                self._check(ignored=is_ending)
                return
            case "restore":
                self.policy.restore()
        self._check()

    def _submit(self) -> None:
        job_id = f"j{self.submitted}"
        self.submitted += 1
        job = self.policy.submit(self.rng, job_id)
        self.models[job_id] = Specification(
            WORK_SAMPLES, job.ALL_TRACK_PROGRESS, job.keeps_progress, TIMEOUT_S, now_s=self.time_s
        )
        self._check()

    def _begin(self, job: Gang, model: Specification) -> None:
        if self.policy.begin(self.rng, job):
            model.begin([*job.members])
        self._check()

    def _restart(self, node: str) -> None:
        """A node restarts, and continues some of its runs."""
        alive = [(job_id, *each) for job_id, model in self.models.items() for each in sorted(model.alive)]
        runs = [f"{number}/{job_id}" for job_id, on, number in alive if on == node]
        self._lose(
            NodeChange(node, "restarted", runs=("1/other", *(run for run in runs if self.rng.random() < 0.7)))
        )

    def _lose(self, change: NodeChange) -> None:
        self.gangs.lose_node(change)
        for job_id, model in self.models.items():
            model.lost(
                change.node,
                {number for number in range(model.generation + 1) if f"{number}/{job_id}" in change.runs},
            )

    def _tick(self) -> None:
        self.time_s += TICK_S
        self.policy.tick(self.time_s)
        for model in self.models.values():
            model.tick(self.time_s)
        self._check()

    def _report(
        self,
        job: Gang,
        model: Specification,
        of: type[RunReport],
        node: str,
        generation: int,
        samples: int,
        refused: bool = False,
        **fields: Any,
    ) -> bool:
        """Report, and return whether it is to count."""
        if generation < 1:
            return False
        run_id = f"{generation}/{job.job_id}"
        report = of(cell="c", node=node, run_id=run_id, job_id=job.job_id, samples_done=samples, **fields)
        counts = model.is_known(node, generation, of is RunFinished)
        self.gangs.refuse(job, report) if refused else self.gangs.report(job, report)
        if not counts:
            self._check(ignored=True)
        return counts

    def _check(self, ignored: bool = False) -> None:
        """Check the decisions of the last event, and the state after it."""
        outcomes = self.policy.outcomes.drain()
        assert [type(each) for each in outcomes if isinstance(each, EventIgnored)] == ignored * [EventIgnored]
        self._check_decisions(outcomes)
        ended = {each.job_id: ENDS[type(each)] for each in outcomes if type(each) in ENDS}
        assert ended == {job_id: model.ending for job_id, model in self.models.items() if model.is_over}
        self.ends.update(ended.values())
        for job_id in ended:
            del self.models[job_id], self.policy.jobs[job_id]
        gangs = self.gangs
        assert [*gangs.jobs] == [*self.models]
        for job_id, model in self.models.items():
            self._check_job(gangs.jobs[job_id], model)
        for node in self.policy.NODES:
            on_node = [job_id for job_id, model in self.models.items() if node in model.nodes]
            assert [job.job_id for job in gangs.jobs_on(node)] == on_node
            assert gangs.is_busy(node) == bool(on_node)
        self.widths = {job_id: sum(job.members.values()) for job_id, job in gangs.jobs.items()}
        may_begin = [job_id for job_id, model in self.models.items() if model.may_begin]
        ready = [job_id for job_id in may_begin if self.models[job_id].retry_s <= self.time_s]
        assert self.policy.waiting() in (None, ready)
        self._check_room()
        self.policy.check()

    def _check_decisions(self, outcomes: list[Outcome]) -> None:
        found: dict[str, list[Decided]] = {job_id: [] for job_id in self.models}
        for job_id, decided in filter(None, map(self.policy.decided, outcomes)):
            found[job_id].append(decided)
        for outcome in outcomes:
            width = self.policy.width_before(outcome)
            assert width in (None, self.widths.get(getattr(outcome, "job_id", ""), 0))
        for job_id, model in self.models.items():
            assert found[job_id] == [self.policy.worded(decided) for decided in model.decided]
            self.causes |= {each.cause for each in model.decided if hasattr(each, "cause")}
            model.decided.clear()

    def _check_job(self, job: Gang, model: Specification) -> None:
        assert (job.generation, tuple(job.members), set(job.done)) == (
            *(model.generation, model.in_force, model.done),
        )
        leaving = {(node, each.generation) for node, each in job.leaving.items()}
        assert leaving | {(node, job.generation) for node in job.working} == model.alive
        assert (job.waits, job.is_ending) == (model.may_begin, model.ending is not None)
        progress = (job.job.samples_done, job.furthest_samples, job.failures, job.retry_s)
        assert progress == (*(model.samples_done, model.furthest_samples, model.failures, model.retry_s),)
        phase = "running" if model.in_force else "stopping" if model.alive else "waiting"
        assert job.phase == ("ending" if model.ending else phase)
        if model.in_force:
            assert (job.last_seen_s, job.quiet_s) == (model.last_seen_s, model.quiet_s)

    def _check_room(self) -> None:
        jobs, held = self.gangs.jobs.values(), Counter[str]()
        for job in jobs:
            held[job.job.user] += job.job.state_bytes + job.state_bytes
        assert self.gangs.room.held == held
        assert self.policy.live.total == sum(job.state_bytes for job in jobs)


def histories(policy: type[Policy], seed: int) -> Set[str]:
    """Check some histories, and return the causes of changes."""
    ends, causes = set(), set()
    for number in range(HISTORIES):
        history = History(random.Random(f"{seed}/{number}"), policy())
        for _ in range(STEPS):
            history.step()
        ends |= set(history.ends)
        causes |= history.causes
    assert ends == {"completed", "refunded", "withdrawn"}
    return causes


@pytest.mark.parametrize("policy", [Plain, Led, Forgetful, Elastic, Experts])
@pytest.mark.parametrize("seed", seeds(16))
def test_gangs_are_as_specified(policy: type[Policy], seed: int) -> None:
    causes = histories(policy, seed)
    assert causes <= policy.RELEASE_REASONS.keys() | {"started", "resumed"}
