"""Jobs and tasks of a merging zone against their specification, in random histories."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.base import Event
from schemas.decisions import EventFaulted, EventIgnored, JobCompleted, JobRefunded, JobWithdrawn
from schemas.fleet import (
    NodeOnline,
    RefusedRun,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunReport,
    RunStarted,
)
from schemas.merging.commands import ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.outcomes import TaskChanged
from schemas.merging.problems import Share
from streams.cell.state_machine import Cell
from streams.policies.merging.tuning_job import TuningJob
from tests.streams.gang.specification import TIMES_EXPECTED
from tests.streams.gang.tasks_specification import (
    PROFILE_LIMIT_S,
    TIMEOUT_S,
    WORK_SAMPLES,
    SpecifiedJob,
    TasksSpecification,
)
from tests.support.cells import Bench, refused
from tests.support.examples import seeds
from tests.support.merging import CELL, MODEL, merging_cell, submit, withdraw
from tests.support.merging_script import INTERVAL_S, Script, of, share, silent

NODES = {"n0": 2, "n1": 2, "n2": 2}
"""GPUs by node."""
MOST_JOBS = 4
STEPS = 50
HISTORIES = 50
"""For each seed."""
SETTLING_ROUNDS = 12
ENDS = {JobCompleted: "completed", JobRefunded: "refunded", JobWithdrawn: "withdrawn"}
WHY_ENDING = {"withdrawn": "withdrawn", "failed": "refunded"}
SAMPLES = [0, 0, 80, 160, 400, WORK_SAMPLES, WORK_SAMPLES + 80]


class History:
    """A random history of one zone, and its specification."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        cell = merging_cell(
            len(NODES),
            NODES["n0"],
            interval_s=INTERVAL_S,
            idle_interval_s=None,
            prewarm_s=0.0,
            order_timeout_s=TIMEOUT_S,
            profile_limit_s=PROFILE_LIMIT_S,
            merges="expected",
        )
        self.script = Script(cell=cell, bench=Bench())
        self.model = TasksSpecification(NODES)
        self.submitted = 0
        self.ends: set[str] = set()
        """Ends of jobs."""
        for _ in range(MOST_JOBS):
            self._submit()

    @property
    def runs(self) -> Any:
        """Runs of the zone."""
        return self.script.bench.zone._runs

    def step(self) -> None:
        """Something happens, mostly a report of a run that there is."""
        rng, model = self.rng, self.model
        what = ["report", "plan", "profile", "refuse", "lose", "online", "silence", "rare"]
        match rng.choices(what, [12, 8, 4, 2, 1, 2, 1, 2])[0]:
            case "report" if model.jobs:
                self._report()
            case "plan":
                self._plan(self._drawn_shares)
            case "profile":
                for job in [job for job in model.jobs.values() if job.stage == "profiling"]:
                    what = "profile" if rng.random() < 0.7 else "failed"
                    self._send_report(job, self._report_of(job, what))
            case "refuse" if model.jobs:
                self._refuse()
            case "lose":
                node = rng.choice([*NODES])
                self._send(silent(node))
                model.down.add(node)
                model.lost(node)
                self._check()
            case "online":
                self._restart(rng.choice([*NODES]))
            case "silence":
                self._fall_silent()
            case "rare":
                self._rarely()

    def settle(self) -> None:
        """Nodes report, and plans are given, until every job has ended."""
        for node in sorted(self.model.down):
            self._restart(node)
        rounds = 0
        while self.model.jobs:
            rounds += 1
            assert rounds <= SETTLING_ROUNDS, "no job is stuck"
            for job in [job for job in self.model.jobs.values() if job.alive]:
                what = "profile" if job.stage == "profiling" else "finished" if job.in_force else "ended"
                self._send_report(job, self._report_of(job, what, job.samples_done))
            self._plan(self._settling_shares)

    # Reports

    def _report(self) -> None:
        """Mostly of a run that there is, and by its leader; now and then twice."""
        rng, jobs = self.rng, [*self.model.jobs.values()]
        followers = [job for job in jobs if self.model.follows(job)]
        job = rng.choice([*followers, *(job for job in jobs if job.alive)] or jobs)
        what = rng.choice(["started", "progressed", "progressed", "ended", "ended", "finished", "failed"])
        if rng.random() < 0.1 and job.leader:
            what = "profile"
        report = self._report_of(job, what, rng.choice(SAMPLES), rng.random() < 0.4)
        if rng.random() < 0.25:
            generation = max(job.generation + rng.choice([0, 0, -2, -1, -1, 1]), 1)
            node = rng.choice([job.leader or "n0", *NODES])
            report = report.model_copy(update={"node": node, "run_id": f"{generation}/{job.job_id}"})
        for _ in range(rng.choice([1, 1, 1, 1, 2])):
            self._send_report(job, report)

    def _report_of(
        self, job: SpecifiedJob, what: str, samples: int = 0, permanent: bool = False
    ) -> RunReport:
        """Return a report of the newest run of a job by its leader."""
        place = {"cell": CELL, "node": job.leader or "n0", "run_id": job.run_id, "job_id": job.job_id}
        match what:
            case "started":
                return RunStarted(**place, samples_done=samples)
            case "finished":
                return RunFinished(**place, samples_done=WORK_SAMPLES)
            case "failed":
                return RunFailed(**place, samples_done=0, error="boom", permanent=permanent)
            case "profile":
                shown = self.script.profile(job.job_id, dataset_samples=WORK_SAMPLES // 10)
                return shown.model_copy(update=place)
        return RunProgressed(**place, samples_done=samples, node_s=0.0, complete=what == "ended")

    def _send_report(self, job: SpecifiedJob, report: RunReport) -> None:
        """Send a report, which is ignored unless it is of a run that may still exist."""
        kept = self.runs.jobs.get(job.job_id)
        task = None if kept is None else self.runs.task_of(kept)
        generation = int(report.run_id.partition("/")[0])
        counts = job.job_id in self.model.jobs and job.is_known(report.node, generation)
        self._send(report, ignored=not counts)
        self.model.down.discard(report.node)
        if counts:
            forecasts = [change.remaining_s for change in of(TaskChanged, self.outcomes) if change.gpus]
            if not forecasts and task is not None and task.task_id in self.runs.all:
                forecasts = [self.runs.remaining_s(task)]
            self.model.report(job, report, *(forecasts or [0.0]))
        self._check()

    def _fall_silent(self) -> None:
        """For a while nothing is reported, but that some runs go on."""
        loud = [job for job in self.model.jobs.values() if job.in_force and self.rng.random() < 0.3]
        for _ in range(self.rng.choice([1, 11, 20])):
            if asked := self._tick():
                self._send(self.script.solved(asked, None))
            for job in [job for job in loud if job.in_force]:
                self._send_report(job, self._report_of(job, "progressed", 400))

    def _refuse(self) -> None:
        """A member of a task refuses it, or any node what it does not have."""
        rng, model = self.rng, self.model
        jobs, node = [rng.choice([*model.jobs.values()])], rng.choice([*NODES])
        if (task := model.task_of(jobs[0])) is not None and rng.random() < 0.8:
            jobs, node = [model.jobs[each] for each in task.job_ids], rng.choice([*task.members])
        older = rng.choice([0, 0, 0, 1])
        runs = [(job, max(job.generation - older, 0)) for job in jobs]
        named = tuple(RefusedRun(run_id=f"{of_run}/{job.job_id}", job_id=job.job_id) for job, of_run in runs)
        self._send(refused(node).model_copy(update={"runs": named}), ignored=None)
        ignored = 1
        for job, generation in runs:
            counts = job.job_id in model.jobs and model.refuses(job, node, generation)
            ignored += job.job_id in model.jobs and not counts
            if counts:
                model.failed(job, node, backs_off=True)
        assert len(of(EventIgnored, self.outcomes)) == ignored
        self._check()

    # Nodes, time, plans, and users

    def _restart(self, node: str) -> None:
        """A node is online again, and continues some of the runs that it has, or none."""
        alive = [job.run_id for job in self.model.jobs.values() if job.alive]
        held = tuple(run_id for run_id in alive if self.rng.random() < 0.4)
        self._send(NodeOnline(cell=CELL, node=node, base_model=MODEL, runners=("tuner",), runs=held))
        self.model.lost(node, held)
        self.model.down.discard(node)
        self._check()

    def _tick(self) -> Any:
        """Time goes on by an interval. Returns the question for a plan, if there is one."""
        script = self.script
        script.asked = None
        script.time_s += INTERVAL_S
        self.outcomes = script.tick(script.time_s)
        self.model.tick(script.time_s)
        self._check()
        asked = script.asked
        askable = {job.job_id for job in self.model.jobs.values() if self.model.may_ask(job)}
        gpus = self.model.available()
        expected = (askable, gpus) if askable and gpus > 0 else None
        assert (asked and (set(asked.problem.job_ids), asked.problem.gpus)) == expected
        return asked

    def _plan(self, shares_of: Any) -> None:
        asked = self._tick()
        if asked is None:
            return
        shares = shares_of(list(asked.problem.job_ids))
        self.outcomes = self.script.answer(*shares, asked=asked)
        granted = {
            change.job_ids: (change.task_id, {member.node: member.gpus for member in change.members})
            for change in of(TaskChanged, self.outcomes)
            if change.gpus
        }
        self.model.plan(shares, granted)
        self._check()

    def _settling_shares(self, job_ids: list[str]) -> Sequence[Share]:
        """A plan with each waiting pair, and each other job alone."""
        pairs = [Share(job_ids=ids, gpus=1, mode=mode) for ids, mode in self.model.pairs.items()]
        paired = [job_id for pair in pairs for job_id in pair.job_ids]
        return [*pairs, *(share(job_id) for job_id in job_ids if job_id not in paired)]

    def _drawn_shares(self, job_ids: list[str]) -> Sequence[Share]:
        """A plan: some tasks stay, some jobs are left out, and some are paired, not all of which may be."""
        rng, model = self.rng, self.model
        shares: list[Share] = []
        rng.shuffle(job_ids)
        kept = rng.choice([0.0, 0.3, 0.9])
        for task in model.tasks:
            if set(task.job_ids) <= set(job_ids) and rng.random() < kept:
                gpus = rng.choice([sum(task.members.values()), rng.randint(1, 4)])
                shares.append(
                    Share(
                        job_ids=task.job_ids,
                        gpus=gpus,
                        mode=task.mode if len(task.job_ids) == 2 else "normal",
                    )
                )
                job_ids = [job_id for job_id in job_ids if job_id not in task.job_ids]
        for ids, mode in model.pairs.items():
            if set(ids) <= set(job_ids) and rng.random() < 0.5:
                shares.append(Share(job_ids=ids, gpus=rng.choice([1, 2]), mode=mode))
                job_ids = [job_id for job_id in job_ids if job_id not in ids]
        while job_ids:
            first, gpus = job_ids.pop(), rng.choice([1, 1, 2, 3, 4])
            is_donor = model.jobs[first].is_fresh or not model.jobs[first].has_learned
            if job_ids and is_donor and rng.random() < 0.6:
                shares.append(
                    share(first, job_ids.pop(), gpus=gpus, mode=rng.choice(["temporal", "spatial"]))
                )
            elif rng.random() < 0.8:
                shares.append(share(first, gpus=gpus))
        return shares

    def _rarely(self) -> None:
        jobs = [*self.model.jobs.values()]
        match self.rng.choice(["withdraw", "submit", "submit", "restore"]):
            case "withdraw" if jobs:
                job = self.rng.choice(jobs)
                self._send(withdraw(job.job_id), ignored=job.ending is not None)
                if job.ending is None:
                    self.model.withdrawn(job)
                self._check()
            case "submit" if len(jobs) < MOST_JOBS:
                self._submit()
            case "restore":
                self.script.bench.cell = Cell.unpack(self.script.bench.cell.packed())

    def _submit(self) -> None:
        job_id = f"j{self.submitted}"
        self.submitted += 1
        self._send(submit(job_id, data=job_id, epochs=10, samples=WORK_SAMPLES // 10, accuracy=None))
        self.model.jobs[job_id] = SpecifiedJob(job_id=job_id)
        self._check()

    def _send(self, event: Event, ignored: bool | None = False) -> None:
        self.outcomes = self.script.send(event)
        assert ignored is None or len(of(EventIgnored, self.outcomes)) == ignored

    # What is checked

    def _check(self) -> None:
        """Check the decisions of the last event, and the state after it."""
        model, outcomes, jobs = self.model, self.outcomes, self.runs.jobs
        assert of(EventFaulted, outcomes) == []
        for outcome in outcomes:
            if isinstance(outcome, TaskChanged) and outcome.facts.get("case") == "profile_run":
                model.preempt(model.jobs[outcome.job_ids[0]])
            if isinstance(outcome, ProfileOrdered):
                job = model.jobs[outcome.order.job_id]
                model.profile(job, outcome.node)
                assert outcome.order.run_id == job.run_id
        orders = [_order(each) for each in outcomes if isinstance(each, TaskAssigned | TaskReleased)]
        assert sorted(orders, key=repr) == sorted(model.orders, key=repr)
        assert [(each.job_id, ENDS[type(each)]) for each in outcomes if type(each) in ENDS] == model.ends
        self.ends |= {end for _, end in model.ends}
        model.orders, model.ends = [], []
        assert [*jobs] == [*model.jobs]
        for job in model.jobs.values():
            self._check_job(job, jobs[job.job_id])
        tasks = [(task.job_ids, task.mode, task.members, task.is_pending) for task in model.tasks]
        kept = [
            (each.job_ids, each.mode, each.members, not each.is_assigned) for each in self.runs.all.values()
        ]
        assert sorted(kept, key=repr) == sorted(tasks, key=repr)
        assert list(self.script.bench.cell.broken_invariants()) == []

    def _check_job(self, job: SpecifiedJob, kept: TuningJob) -> None:
        assert (kept.stage, kept.generation) == (job.stage, job.generation)
        assert (kept.failures, kept.never_merges) == (job.failures, job.never_merges)
        assert (kept.job.samples_done, kept.furthest_samples) == (job.samples_done, job.furthest_samples)
        is_to_end = bool(job.alive) and not job.in_force
        ending = {kept.run_of(leaving.generation): node for node, leaving in kept.leaving.items()}
        assert ending == ({job.run_id: job.leader} if is_to_end else {})
        assert [*kept.members] == ([job.leader] if job.in_force else [])
        if job.in_force:
            assert (
                kept.last_seen_s + TIMES_EXPECTED * kept.quiet_s
                == job.last_seen_s + TIMES_EXPECTED * job.quiet_s
            )
        assert (kept.retry_s > self.model.now_s) == job.backs_off(self.model.now_s)


def _order(command: TaskAssigned | TaskReleased) -> tuple[object, ...]:
    """Return an order to begin or end runs as the specification has it."""
    if isinstance(command, TaskReleased):
        about = command.job_ids if command.reason in WHY_ENDING else ()
        ending = [(job_id, WHY_ENDING[command.reason]) for job_id in about]
        return "end", command.node, tuple(run.run_id for run in command.runs), ending
    runs = tuple((run.run_id, run.resume_iterations, run.oldest_generation - 1) for run in command.orders)
    return "begin", command.node, command.mode, runs


@pytest.mark.parametrize("seed", seeds(16))
def test_jobs_and_tasks_are_as_specified(seed: int) -> None:
    ends: set[str] = set()
    for number in range(HISTORIES):
        history = History(random.Random(f"{seed}/{number}"))
        for _ in range(STEPS):
            history.step()
        history.settle()
        ends |= history.ends
    assert ends == {"completed", "refunded", "withdrawn"}
