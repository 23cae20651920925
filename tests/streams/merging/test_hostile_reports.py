"""Reports with numbers that the schemas let pass and that no sound node would send: none stops the cell, and
every job ends."""

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.fleet import (
    CommandRefused,
    RefusedRun,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunReport,
    RunStarted,
)
from schemas.merging.commands import TaskAssigned
from schemas.merging.outcomes import JobForetold, MergeEvaluated
from schemas.merging.reports import MeasuredStep, TaskEvaluated, TaskProfiled
from schemas.merging.workload import TuningHyperparameters, TuningWorkload
from tests.streams.merging.test_histories import STEPS, History, check_end
from tests.support.examples import examples, long
from tests.support.merging import CELL, submit
from tests.support.merging_script import Script, ending_runs, of, share

TINY = 5e-324
"""The smallest number above 0."""
SECONDS = (1e-9, 1e-6, 1e-3, 1.0, 1e6)
ACCURACIES = (0.0, TINY, 1e-18, 0.1, 0.5, 0.8, 1.0)
LOSSES = (0.0, TINY, 1.0, 2.0, 1e9)
FISHER = (0.0, TINY, 1e-160, 1.0, 1e12)
FEATURES = (-1e12, -1.0, -TINY, 0.0, 1e-160, 1e12)
EPOCHS = (0.0, TINY, 1.0, 2.0, 3.0, 1e9)


class HostileHistory(History):
    """Half of what happens is a report with numbers that no sound node would send."""

    def __init__(self, rng: random.Random) -> None:
        self._reports: tuple[Callable[[dict[str, Any], dict[str, Any]], RunReport], ...] = (
            *(self._started, self._progressed, self._finished, self._failed),
            *(self._profiled, self._profiled, self._evaluated, self._evaluated, self._evaluated),
        )
        self.rng = rng
        super().__init__(
            rng,
            transferability=rng.choice(["task2vec", "task2feat"]),
            speeds=tuple(self._measured() for _ in range(rng.choice([0, 0, 2]))),
        )

    def step(self) -> None:
        jobs = self.world.bench.jobs
        if jobs and self.rng.random() < 0.5:
            job = self.rng.choice(jobs)
            place = self._place(job)
            if self.rng.random() < 0.1:
                self.send(self._refused(place))
            else:
                self.send(self.rng.choice(self._reports)(job, place))
        else:
            super().step()

    def _place(self, job: dict[str, Any]) -> dict[str, Any]:
        """A run of the job, most often one that it has, with its reported progress."""
        rng, bench, job_id = self.rng, self.world.bench, job["job_id"]
        runs = [job["run_id"], job["run_id"], *ending_runs(job), "t1.1/j"]
        run = rng.choice([*runs, f"{max(job['generation'] - 1, 0)}/{job_id}"])
        leaders = list(job["members"]) if job["stage"] == "profiling" else []
        if job["task"] is not None:
            leaders.append(next(iter(bench.described["tasks"][job["task"]]["members"])))
        leaders = leaders or self.nodes
        total, batch_size = job["total_samples"], self._workload(job).hyperparameters.batch_size
        samples = (0, 1, batch_size, total // 2, total, total + 1, 2 * 10**12)
        return {
            "cell": CELL,
            "node": ending_runs(job).get(run) or rng.choice(leaders),
            "run_id": run,
            "job_id": job_id,
            "samples_done": rng.choice(samples),
        }

    def _workload(self, job: dict[str, Any]) -> TuningWorkload:
        return cast(TuningWorkload, self.world.bench.cell.jobs.live[job["job_id"]].workload)

    @staticmethod
    def _refused(place: dict[str, Any]) -> CommandRefused:
        return CommandRefused(
            cell=CELL,
            node=place["node"],
            command_id="c-7-0",
            runner="tuner",
            reason="malformed",
            detail="",
            runs=(RefusedRun(run_id=place["run_id"], job_id=place["job_id"]),),
        )

    def _measured(self) -> MeasuredStep:
        rng, step_s = self.rng, self.rng.choice(SECONDS)
        return MeasuredStep(
            gpus=rng.choice([1, 2, 4, 1_024]),
            nodes=rng.choice([1, 2, 1_024]),
            micro_batch_size=rng.choice([1, 8, 4_096]),
            accumulation_steps=rng.choice([1, 2, 4_096]),
            step_s=step_s,
            exchange_s=rng.choice([0.0, step_s / 2, step_s, *SECONDS]),
        )

    def _started(self, job: dict[str, Any], place: dict[str, Any]) -> RunStarted:
        return RunStarted(**place)

    def _progressed(self, job: dict[str, Any], place: dict[str, Any]) -> RunProgressed:
        return RunProgressed(**place, node_s=self.rng.choice([0.0, 1e9]), complete=self.rng.random() < 0.5)

    def _finished(self, job: dict[str, Any], place: dict[str, Any]) -> RunFinished:
        return RunFinished(**place)

    def _failed(self, job: dict[str, Any], place: dict[str, Any]) -> RunFailed:
        error = self.rng.choice(["", "out of memory"])
        return RunFailed(**place, error=error, permanent=self.rng.random() < 0.2)

    def _profiled(self, job: dict[str, Any], place: dict[str, Any]) -> TaskProfiled:
        rng = self.rng
        losses = [max(2.0 - 0.1 * number, 0.0) for number in range(12)]
        if rng.random() < 0.5:
            losses = rng.choices(LOSSES, k=rng.choice([1, 2, 3, 64]))
        return TaskProfiled(
            **place,
            losses=tuple(losses),
            embedding=tuple(rng.choices(FISHER, k=rng.choice([1, 3, 3, 3]))),
            features=tuple(rng.choices(FEATURES, k=rng.choice([0, 1, 3, 3]))),
            accuracy=rng.choice([None, *ACCURACIES]),
            accuracy_after_epoch=rng.choice([None, *ACCURACIES]),
            steps=tuple(self._measured() for _ in range(rng.choice([1, 2]))),
            memory_gib=rng.choice([0.0, 1e6]),
            loader_s=rng.choice([0.0, 1e6]),
            dataset_samples=rng.choice([1, 800, 10**12]),
        )

    def _evaluated(self, job: dict[str, Any], place: dict[str, Any]) -> TaskEvaluated:
        rng = self.rng
        return TaskEvaluated(
            **place,
            iterations=rng.choice([0, 1, self._workload(job).target.most_iterations, 10_000_000]),
            epochs=rng.choice(EPOCHS),
            loss=rng.choice([None, *LOSSES]),
            accuracy=rng.choice(ACCURACIES),
            phase=rng.choice(["own", "own", "donor"]),
            partner=None,
            step=self._measured() if rng.random() < 0.5 else None,
        )


def measured(**changes: Any) -> MeasuredStep:
    fields = {"gpus": 1, "nodes": 1, "micro_batch_size": 8, "accumulation_steps": 1, "step_s": 1.0}
    return MeasuredStep(**{**fields, "exchange_s": 0.0, **changes})


NO_TIME = {
    "exchange_alone": measured(exchange_s=1.0),
    "exchange_beyond": measured(exchange_s=2.0),
    "almost_nothing": measured(step_s=1e-9, accumulation_steps=4_096),
}


def seconds_per_step(script: Script) -> set[float]:
    """With one GPU, of all jobs that the next plan is asked for."""
    return {steps[0].step_s for steps in script.ask().problem.step_tables}


def test_reported_progress_is_bounded_by_work() -> None:
    script = Script()
    script.ready("a")
    script.plan(share("a"))
    script.send(script.progressed("a", 10**11))
    assert script.job("a")["iterations"] == 1_000
    script.send(script.evaluated("a", 1.0, 0.5, iterations=10_000_000))
    script.send(script.failed("a"))
    (assigned,) = of(TaskAssigned, script.plan(share("a")))
    assert assigned.orders[0].resume_iterations == 1_000


@pytest.mark.parametrize("case", NO_TIME)
def test_steps_without_duration_are_ignored(case: str) -> None:
    script = Script()
    script.send(submit("a", accuracy=None))
    script.send(script.profile("a", steps=(NO_TIME[case],)))
    assert seconds_per_step(script) == {1.0}, "as before any was measured"
    script.answer(share("a"), asked=script.asked)
    script.send(script.evaluated("a", 1.0, 0.5, step=measured(step_s=3.0)))
    script.send(script.evaluated("a", 2.0, 0.5, step=NO_TIME[case]), submit("b", data="b", accuracy=None))
    assert seconds_per_step(script) == {3.0}


@pytest.mark.parametrize("case", NO_TIME)
def test_steps_without_duration_in_settings_are_ignored(case: str) -> None:
    script = Script(speeds=(NO_TIME[case], measured(step_s=2.0)))
    frozen = TuningHyperparameters(batch_size=8, frozen_layers=2)
    script.send(submit("a", accuracy=None, hyperparameters=frozen))
    script.send(script.profile("a", steps=(NO_TIME[case], measured(step_s=1.0), NO_TIME[case])))
    assert seconds_per_step(script) == {1.0}


def test_features_of_other_length_are_refused() -> None:
    script = Script(transferability="task2feat")
    script.send(submit("a", accuracy=None), submit("b", data="b", accuracy=None))
    script.send(script.profile("a", features=(1.0, -2.0, 3.0)))
    (told,) = of(JobForetold, script.send(script.profile("b", features=(1.0, 2.0))))
    assert told.reason == "unusable_profile"
    assert told.facts == {"case": "other_length", "field": "features", "values": 2, "known_values": 3}
    script.tick(5.0)
    assert [unit.part for unit in script.ask().problem.units] == ["any", "none"]


@pytest.mark.parametrize(("before", "best", "gain"), [(1.0, 1e-18, -0.999), (TINY, 1.0, 999.0)])
def test_gain_is_bounded(before: float, best: float, gain: float) -> None:
    script = Script()
    script.ready("alone")
    script.plan(share("alone"))
    script.send(script.evaluated("alone", 2.0, before), script.finished("alone", 900))
    script.ready("merged", data="alone")
    script.ready("donor")
    script.tick(script.time_s + 5.0)
    script.plan(share("donor", "merged"))
    script.send(script.finished("donor", 900), script.evaluated("merged", 1.0, best))
    (told,) = of(MergeEvaluated, script.send(script.finished("merged", 900)))
    assert told.gain == gain


def check(seed: int) -> None:
    history = HostileHistory(random.Random(seed))
    for _ in range(STEPS):
        history.step()
    history.settle()
    check_end(history)


@pytest.mark.parametrize("seed", [*range(4), *long(*range(4, 12))])
def test_report_of_known_history_stops_no_cell(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 2**32))
def test_no_report_of_any_history_stops_a_cell(seed: int) -> None:
    check(seed)
