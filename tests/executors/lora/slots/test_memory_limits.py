"""A run with a declared memory is limited to it, without an effect on other runs."""

import pytest
import torch

from executors.lora.engine import BYTES_PER_GIB, FusedEngine
from schemas.fleet import RunFailed, RunProgressed
from schemas.lora_commands import MEMORY_TOLERANCE_GIB
from tests.support.executors import assignment, order

PLENTY_GIB = 64.0
LARGE = {"batch_size": 32, "sequence_length": 64}


def limited(job_id: str, quota: int, limit_gib: float, **hyperparameters: object):
    changes = {"memory_limit_gib": limit_gib, "speed_is_declared": True}
    return order(job_id, quota, **hyperparameters).model_copy(update=changes)


def recording_engine() -> tuple[type[FusedEngine], list[dict[str, tuple[int, int]]]]:
    """Return an engine, and the list of its steps: the size of each task's part."""
    steps: list[dict[str, tuple[int, int]]] = []

    class Recording(FusedEngine):
        def step(self, job_ids=None):
            steps.append({job_id: self.upcoming_size(job_id) for job_id in job_ids})
            return super().step(job_ids)

    return Recording, steps


def test_run_alone_reports_its_memory(bench) -> None:
    bench.carry_out(assignment(order("a", 16)))
    bench.carry_out(assignment(limited("b", 16, PLENTY_GIB)))
    assert bench.reports_on("a")[-1].memory_gib == bench.reports_on("b")[-1].memory_gib > 0


def test_shared_steps_measure_no_memory(bench) -> None:
    bench.carry_out(assignment(order("a", 16), order("b", 16)))
    assert {bench.reports_on(job_id)[-1].memory_gib for job_id in "ab"} == {None}


def test_memory_is_reported_and_unlimited_when_reserved(bench) -> None:
    bench.carry_out(assignment(limited("a", 16, PLENTY_GIB), order("b", 16)))
    (reported,) = [r for r in bench.reports_on("a") if isinstance(r, RunProgressed)]
    assert reported.samples_done == 16
    assert 0 < reported.memory_gib < PLENTY_GIB
    expected, _ = bench.trained_alone(order("a", 16), 16)
    torch.testing.assert_close(bench.saved("a").parameters, expected.parameters, rtol=1e-3, atol=1e-4)


def test_run_above_its_memory_fails_alone(bench) -> None:
    limit_gib = 1 / 1024
    bench.carry_out(assignment(limited("greedy", 64, limit_gib, **LARGE), order("b", 16)))
    failed = bench.reports_on("greedy")[-1]
    assert isinstance(failed, RunFailed)
    assert failed.permanent
    assert failed.error.startswith("memory_understated: ")
    assert failed.memory_gib > limit_gib + MEMORY_TOLERANCE_GIB
    assert bench.reports_on("b")[-1].samples_done == 16


def test_run_may_use_memory_and_tolerance(bench) -> None:
    bench.carry_out(assignment(limited("a", 32, PLENTY_GIB, **LARGE)))
    taken_gib = bench.reports_on("a")[-1].memory_gib
    bench.reports.clear()
    within = taken_gib - MEMORY_TOLERANCE_GIB
    bench.carry_out(assignment(limited("b", 32, within, **LARGE)))
    assert isinstance(bench.reports_on("b")[-1], RunProgressed)
    bench.carry_out(assignment(limited("c", 32, within - 1 / BYTES_PER_GIB, **LARGE)))
    assert isinstance(bench.reports_on("c")[-1], RunFailed)


def test_device_with_less_memory_reveals_claim(bench) -> None:
    class Small(FusedEngine):
        def step(self, job_ids=None):
            losses = super().step(job_ids)
            if "greedy" in job_ids:
                raise torch.OutOfMemoryError("out of memory")
            return losses

    bench.carry_out(
        assignment(limited("greedy", 64, 1 / 1024, **LARGE), order("b", 16)), bench.workshop(Small)
    )
    failed = bench.reports_on("greedy")[-1]
    assert failed.permanent
    assert failed.error.startswith("memory_understated: ")
    assert bench.reports_on("b")[-1].samples_done == 16


def test_run_without_device_memory_may_move(bench) -> None:
    class Small(FusedEngine):
        def step(self, job_ids=None):
            raise torch.OutOfMemoryError("out of memory")

    bench.carry_out(assignment(limited("a", 16, PLENTY_GIB)), bench.workshop(Small))
    failed = bench.reports_on("a")[-1]
    assert isinstance(failed, RunFailed)
    assert not failed.permanent
    assert failed.memory_gib < PLENTY_GIB


@pytest.mark.long
def test_step_is_shared_after_one_as_large(bench) -> None:
    engine, steps = recording_engine()
    runs = assignment(limited("a", 400, PLENTY_GIB, batch_size=2), order("b", 400, batch_size=2))
    bench.carry_out(runs, bench.workshop(engine))
    measured: list[tuple[int, int]] = []
    shared = 0
    for step in steps:
        if step.keys() == {"a"}:
            measured.append(step["a"])
        elif "a" in step:
            shared += 1
            tokens, loss_rows = step["a"]
            assert any(tokens <= t and loss_rows <= rows for t, rows in measured)
    assert shared > 100


def test_growing_runs_alternate_with_others(bench) -> None:
    engine, steps = recording_engine()
    grown = iter(range(1, 10_000))
    engine.upcoming_size = lambda _self, _job_id: (next(grown), 1)
    bench.carry_out(
        assignment(limited("a", 40, PLENTY_GIB), limited("b", 40, PLENTY_GIB), order("c", 40)),
        bench.workshop(engine),
    )
    first = steps[: 2 + 4 * 4]
    assert all(len(step) == 1 for step in first)
    assert {name: sum(name in step for step in first) for name in "abc"} == {"a": 5, "b": 5, "c": 8}
