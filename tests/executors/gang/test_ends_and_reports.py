"""Ends and reports of gangs that random histories of a node seldom reach."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors.elastic.runner import ElasticRunner
from executors.elastic.settings import ElasticSettings
from executors.gang import local_gang
from executors.gang.messages import Ended, Joined, Membership, RankProgress, Release
from schemas.fleet import RunProgressed, RunReport
from schemas.profiles import MeasuredSteps
from tests.executors.gang.light_ranks import LightRank
from tests.executors.gang.test_gang_model import GPUS, NODE, WORK_SAMPLES, ManualClock
from tests.support import elastic_nodes


class Bench:
    """A node with the runner `elastic`, whose ranks are light."""

    def __init__(self, root: Path) -> None:
        LightRank.all.clear()
        fleet = elastic_nodes.Fleet(root, ElasticSettings(model_root=root, dataset_root=root))
        self.clock, self.reports = ManualClock(), list[RunReport]()
        context = replace(fleet.context(NODE, self.reports), clock=self.clock)
        self.runner = ElasticRunner(context, fleet.settings, GPUS)

    def assign(
        self, job_id: str, generation: int, ranks: int, *, resumes: bool = False, keeps: bool = True
    ) -> None:
        work = elastic_nodes.workload(WORK_SAMPLES, keeps=keeps)
        members = [(NODE, ranks)]
        self.runner.apply(elastic_nodes.assigned(NODE, job_id, generation, members, work, resumes=resumes))

    def start(self, job_id: str, ranks: int, *, keeps: bool = True) -> Sequence[LightRank]:
        """Start a job in generation 1, and return its ranks, which have joined."""
        before = len(LightRank.all)
        self.assign(job_id, 1, ranks, keeps=keeps)
        self.runner.advance()
        started = LightRank.all[before:]
        for rank in started:
            rank.emit(Joined(generation=1, samples_done=0, dataset_samples=None))
        self.runner.advance()
        return started

    def release(self, job_id: str, reason: Any, by_s: float | None = None) -> None:
        self.runner.apply(elastic_nodes.released(NODE, job_id, 1, reason, by_s))

    def end(self, rank: LightRank, reason: Any, samples: int) -> None:
        rank.emit(Ended(reason=reason, samples_done=samples, node_s=1.0))
        rank.end()
        self.runner.advance()

    @property
    def progress(self) -> list[RunProgressed]:
        return [report for report in self.reports if isinstance(report, RunProgressed)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(local_gang, "ForkedProcess", LightRank)
    return Bench(tmp_path)


def test_stopped_gang_does_not_continue(bench: Bench) -> None:
    first, second = bench.start("a", 2)
    bench.end(first, "stopped", 8)
    bench.assign("a", 2, 2)
    (directive,) = second.directives
    assert (type(directive), directive.verdict) == (Release, "stop")
    bench.end(second, "stopped", 8)
    assert [(report.run_id, report.complete) for report in bench.progress] == [("a/1", True)]
    newer = [rank.order.membership for rank in LightRank.all[2:]]
    assert newer == [Membership(generation=2, rank=rank, world=2) for rank in range(2)]


def test_stopped_gang_without_checkpoints_keeps_nothing(bench: Bench) -> None:
    first, second = bench.start("a", 2, keeps=False)
    bench.end(first, "stopped", 8)
    bench.release("a", "scaled_in")
    bench.end(second, "left", 8)
    assert [report.samples_done for report in bench.progress] == [0]


def test_only_the_disowned_run_ends(bench: Bench) -> None:
    bench.start("a", 1)
    bench.start("b", 1)
    bench.assign("a", 2, 1, resumes=True)
    bench.runner.disown("a/1", "a")
    assert bench.runner.held_runs() == ["b/1", "a/2"]


@pytest.mark.parametrize("ahead_s", [(10.0, 20.0), (20.0, 10.0)])
def test_earliest_deadline_of_releases_counts(bench: Bench, ahead_s: tuple[float, float]) -> None:
    (rank,) = bench.start("a", 1)
    for reason, each_s in zip(("preempted", "withdrawn"), ahead_s, strict=True):
        bench.release("a", reason, bench.clock.now_s + each_s)
    bench.clock.now_s += 9.0
    bench.runner.advance()
    assert rank.is_alive
    bench.clock.now_s += 1.0
    bench.runner.advance()
    assert not rank.is_alive


@pytest.mark.parametrize("earlier_steps", [1, 2])
def test_unreported_steps_count_by_their_numbers(bench: Bench, earlier_steps: int) -> None:
    (rank,) = bench.start("a", 1)
    durations_s = (2.0, 1.0, 4.0, 4.0)
    parts = ([1.0], durations_s[:earlier_steps], durations_s[earlier_steps:])
    for part, samples in zip(parts, (4, 4, 8), strict=True):
        measured = steps_of(part)
        rank.emit(RankProgress(samples_done=samples, node_s=1.0, measured=measured, leads=True))
    bench.runner.advance()
    assert [report.measured for report in bench.progress] == [steps_of([1.0]), steps_of(durations_s)]


def steps_of(durations_s: Sequence[float]) -> MeasuredSteps:
    """Return steps of these durations, half of which are exchanges."""
    mean_s = sum(durations_s) / len(durations_s)
    return MeasuredSteps(
        micro_batch_size=4,
        step_s=mean_s,
        exchange_s=mean_s / 2,
        loader_s=mean_s / 4,
        tokens_per_sample=16 * mean_s,
        steps=len(durations_s),
        precision="float32",
    )
