"""A slot: what each run trains, saves and reports, whoever it shares the device with."""

import time
from collections.abc import Callable
from hashlib import blake2b

import pytest
import torch

from executors.lora.engine import FusedEngine
from executors.lora.lora_task import TaskState
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from tests.support.executors import CELL, assignment, order, write_dataset

SameTraining = Callable[[TaskState, TaskState], None]


def test_run_trains_quota_then_saves_and_reports(bench) -> None:
    job = order("j", quota=16)
    runner = bench.carry_out(assignment(job))
    state, loss = bench.trained_alone(job, 16)
    identity = {"cell": CELL, "node": "n1", "run_id": "0/j", "job_id": "j"}
    memory_gib = bench.reports[-1].memory_gib
    assert bench.reports == [
        RunStarted(**identity, samples_done=0, dataset_samples=48),
        RunProgressed(
            **identity, samples_done=16, loss=loss, node_s=0.0, memory_gib=memory_gib, complete=True
        ),
    ]
    assert memory_gib > 0
    assert torch.equal(bench.saved("j").parameters, state.parameters)
    assert runner.over == {"j"}
    assert runner.advance() == "idle"


def test_throttled_sequences_take_their_time(bench) -> None:
    bench.settings = bench.settings.model_copy(update={"least_sequence_s": 0.02})
    began_s = time.monotonic()
    bench.carry_out(assignment(order("j", quota=16)))
    assert bench.reports[-1].samples_done == 16
    assert time.monotonic() - began_s >= 16 * 0.02


def test_batch_reaching_quota_is_trained_whole(bench) -> None:
    bench.carry_out(assignment(order("j", quota=9)))
    assert bench.reports[-1].samples_done == 12


def test_last_batch_is_cut_and_adapter_published(bench) -> None:
    job = order("j", quota=100, work=14)
    bench.carry_out(assignment(job))
    state, loss = bench.trained_alone(job, 14)
    finished = bench.reports[-1]
    assert isinstance(finished, RunFinished)
    assert (finished.samples_done, finished.loss, finished.adapter_path) == (14, loss, "c/u/j")
    tensors = (bench.root / "adapters" / "c" / "u" / "j" / "adapter_model.safetensors").read_bytes()
    assert finished.adapter_digest == blake2b(tensors, digest_size=32).hexdigest()
    assert torch.equal(bench.adapter("j"), state.parameters)


def test_sharing_runs_end_at_own_quotas(bench, assert_same_training: SameTraining) -> None:
    jobs = {
        "short": order("short", quota=8, batch_size=4),
        "long": order("long", quota=30, batch_size=3, seed=1, rank=2, target_modules=("o_proj",)),
        "last": order("last", quota=100, work=23, batch_size=5, seed=2, dropout=0.2),
    }
    bench.carry_out(assignment(*jobs.values()))
    for job_id, samples in {"short": 8, "long": 30, "last": 23}.items():
        state, loss = bench.trained_alone(jobs[job_id], samples)
        if job_id == "last":
            torch.testing.assert_close(bench.adapter("last"), state.parameters, rtol=1e-3, atol=1e-4)
        else:
            assert_same_training(bench.saved(job_id), state)
        assert bench.reports_on(job_id)[-1].loss == pytest.approx(loss, rel=1e-4)
    # The last one goes on after the first has left.
    assert [event.job_id for event in bench.reports[3:]] == ["short", "last", "long"]


@pytest.mark.parametrize("restarted", [False, True], ids=["parked", "from the store"])
def test_job_is_independent_of_its_slots(bench, restarted: bool) -> None:
    workshop = bench.workshop()
    for slot, (quota, done) in enumerate([(9, 12), (1, 16), (100, 31)]):
        job = order("j", quota, work=31, dropout=0.1)
        bench.carry_out(assignment(job, slot=slot), bench.workshop() if restarted else workshop)
        assert bench.reports[-1].samples_done == done
    state, loss = bench.trained_alone(job, 31)
    assert torch.equal(bench.adapter("j"), state.parameters)
    assert isinstance(bench.reports[-1], RunFinished)
    assert bench.reports[-1].loss == loss


def test_state_continued_elsewhere_is_not_reused(bench) -> None:
    first, second = bench.workshop(), bench.workshop()
    bench.carry_out(assignment(order("j", 8)), first)
    bench.carry_out(assignment(order("j", 8, resume=8), node="n2", slot=1), second)
    bench.carry_out(assignment(order("j", 8, resume=16), slot=2), first)
    assert bench.reports[-1].samples_done == 24
    assert torch.equal(bench.saved("j").parameters, bench.trained_alone(order("j", 8), 24)[0].parameters)


def test_the_end_of_the_slot_ends_every_run(bench) -> None:
    runner = bench.runner(assignment(order("a", 1_000), order("b", 1_000, seed=1)))
    for _ in range(2):
        assert runner.advance() == "working"
    bench.clock.now_s += 100
    assert runner.advance() == "idle"
    assert [(e.job_id, e.samples_done, e.complete) for e in bench.reports[2:]] == [
        ("a", 8, True),
        ("b", 8, True),
    ]
    assert bench.saved("a").samples_done == bench.saved("b").samples_done == 8


def test_run_reports_its_time_of_node(bench) -> None:
    class SlowEngine(FusedEngine):
        def step(self, job_ids=None):
            bench.clock.now_s += 6.0
            return super().step(job_ids)

    # Sequences are cut at sequence_length: four times the tokens, or about that.
    jobs = (order("large", 8, batch_size=8), order("small", 6, batch_size=2))
    bench.carry_out(assignment(*jobs), bench.workshop(SlowEngine))
    told = {job_id: bench.reports_on(job_id)[-1] for job_id in ("large", "small")}
    assert told["large"].samples_done == 8
    assert told["large"].node_s == 3.0, "an equal part of the one step that it shared"
    assert told["small"].samples_done == 6
    assert 12.0 < told["small"].node_s < 12.0 + 3.0, "two steps alone, and of the first a part by its tokens"


def test_data_time_counts_for_its_run(bench) -> None:
    class SlowReader(FusedEngine):
        def upcoming_size(self, job_id):
            bench.clock.now_s += 5.0 if job_id == "slow" else 0.0
            return super().upcoming_size(job_id)

    jobs = (order("slow", 8, batch_size=8), order("good", 8, batch_size=8, seed=1))
    bench.carry_out(assignment(*jobs), bench.workshop(SlowReader))
    assert (bench.reports_on("slow")[-1].node_s, bench.reports_on("good")[-1].node_s) == (5.0, 0.0)


def test_first_step_with_declared_speed_is_alone(bench) -> None:
    class SlowEngine(FusedEngine):
        def step(self, job_ids=None):
            bench.clock.now_s += 40.0 if "slow" in job_ids else 1.0
            return super().step(job_ids)

    declared = {"speed_is_declared": True}
    jobs = [
        order("slow", 1_000, batch_size=8).model_copy(update=declared),
        order("fast", 1_000, batch_size=8, seed=1).model_copy(update=declared),
        order("known", 1_000, seed=2),
    ]
    runner = bench.runner(assignment(*jobs), bench.workshop(SlowEngine))
    while runner.advance() == "working":
        pass
    node_s = {job_id: bench.reports_on(job_id)[-1].node_s for job_id in ("slow", "fast", "known")}
    # 40 s and 1 s alone, then two steps of 40 s that all three share.
    assert node_s["slow"] > 40.0 + 80.0 / 4
    assert 1.0 < node_s["fast"] <= 1.0 + 80.0 / 3
    assert 0.0 < node_s["known"] < 80.0 / 4


def test_run_without_time_for_step_reports_it(bench) -> None:
    class SlowEngine(FusedEngine):
        def step(self, job_ids=None):
            bench.clock.now_s += 400.0
            return super().step(job_ids)

    declared = {"speed_is_declared": True}
    jobs = [
        order(job_id, 1_000, seed=seed).model_copy(update=declared)
        for seed, job_id in enumerate(("slow", "waiting"))
    ]
    runner = bench.runner(assignment(*jobs), bench.workshop(SlowEngine))
    while runner.advance() == "working":
        pass
    slow, waited = bench.reports_on("slow")[-1], bench.reports_on("waiting")[-1]
    assert (slow.node_s, slow.complete) == (400.0, True)
    assert isinstance(waited, RunFailed)
    assert (waited.permanent, waited.error) == (False, "the slot was over before the run's first step")


def test_run_reports_number_of_records(bench) -> None:
    write_dataset(bench.datasets / "more.jsonl", records=61)
    bench.carry_out(assignment(order("j", 8, dataset="more.jsonl")))
    assert isinstance(bench.reports[0], RunStarted)
    assert bench.reports[0].dataset_samples == 61


def test_closing_before_anything_began_fails_the_runs(bench) -> None:
    runner = bench.runner(assignment(order("j", 8)))
    runner.close("newer_slot")
    (failed,) = bench.reports
    assert (type(failed), failed.job_id, failed.permanent) == (RunFailed, "j", False)
    assert runner.advance() == "idle"


def test_killed_run_resumes_with_its_goal(bench) -> None:
    job = order("j", quota=40, work=1_000, dropout=0.1)
    bench.carry_out(assignment(job))
    later = assignment(job.model_copy(update={"resume_samples": 40}), slot=1)
    killed = bench.runner(later)
    for _ in range(5):
        killed.advance()
    assert bench.saved("j").samples_done == 52
    bench.reports.clear()
    bench.carry_out(later)
    assert [type(event) for event in bench.reports] == [RunStarted, RunProgressed]
    assert [event.samples_done for event in bench.reports] == [52, 80]
    assert torch.equal(bench.saved("j").parameters, bench.trained_alone(job, 80)[0].parameters)


@pytest.mark.parametrize("work", [16, 1_000], ids=["finished", "at its quota"])
def test_run_killed_before_report_reports_without_training(bench, work: int) -> None:
    assigned = assignment(order("j", quota=16, work=work))
    bench.carry_out(assigned)
    lost = bench.reports.pop()
    bench.carry_out(assigned)
    if isinstance(lost, RunProgressed):
        # The second process has taken no step.
        lost = lost.model_copy(update={"memory_gib": None})
    identity = {"cell": CELL, "node": "n1", "run_id": "0/j", "job_id": "j"}
    assert bench.reports == [
        RunStarted(**identity, samples_done=0, dataset_samples=48),
        # The data of a finished job are not read again.
        RunStarted(**identity, samples_done=16, dataset_samples=None if work == 16 else 48),
        lost,
    ]


@pytest.mark.parametrize(("work", "kind"), [(1_000, RunProgressed), (12, RunFinished)])
def test_killed_training_is_reported_after_slot(bench, work: int, kind) -> None:
    assigned = assignment(order("j", quota=40, work=work), order("unbegun", 8, resume=99))
    killed = bench.runner(assigned)
    for _ in range(3):
        killed.advance()
    bench.reports.clear()
    bench.clock.now_s += 100
    assert bench.runner(assigned, bench.workshop()).advance() == "idle"
    reports = [(event.job_id, type(event), event.samples_done) for event in bench.reports]
    assert [report for report in reports if report[0] == "j"] == [("j", RunStarted, 12), ("j", kind, 12)]
    assert [report for report in reports if report[0] != "j"] == [("unbegun", RunFailed, 99)]


def test_run_waits_for_predecessor_while_others_train(bench) -> None:
    predecessor = bench.runner(assignment(order("j", 8)))
    predecessor.advance()
    moved = assignment(order("j", 8, resume=8), order("k", 8, seed=1), node="n2", slot=1)
    successor = bench.runner(moved, bench.workshop())
    while successor.advance() == "working":
        pass
    assert successor.advance() == "waiting"
    assert bench.reports[-1].job_id == "k"
    while predecessor.advance() == "working":
        pass
    bench.clock.now_s += 1
    while successor.advance() == "working":
        pass
    assert [event.samples_done for event in bench.reports_on("j")] == [0, 8, 8, 16]


def test_a_run_does_not_wait_for_ever(bench) -> None:
    bench.carry_out(assignment(order("j", 8)))
    successor = bench.runner(assignment(order("j", 8, resume=20), order("new", 8, resume=4), slot=1))
    assert successor.advance() == "waiting"
    bench.clock.now_s += 10
    while successor.advance() == "working":
        pass
    started = [event for event in bench.reports[2:] if isinstance(event, RunStarted)]
    assert [(event.job_id, event.samples_done) for event in started] == [("j", 8), ("new", 0)]
    assert (bench.reports_on("j")[-1].samples_done, bench.reports_on("new")[-1].samples_done) == (16, 8)


def test_run_in_short_slot_outlives_dead_predecessor(bench) -> None:
    bench.carry_out(assignment(order("j", 8)))
    short = assignment(order("j", 8, resume=20), slot=1, length_s=4.0)
    successor = bench.runner(short, bench.workshop())
    assert successor.advance() == "waiting"
    bench.clock.now_s += 1
    while successor.advance() == "working":
        pass
    assert bench.clock.now_s < short.slot_end_s
    assert (bench.reports_on("j")[-1].samples_done, bench.reports_on("j")[-1].complete) == (16, True)


def test_progress_is_reported_at_intervals(bench) -> None:
    runner = bench.runner(assignment(order("a", 1_000), order("b", 1_000, batch_size=2)))
    for _ in range(3):
        bench.clock.now_s += 2.5
        runner.advance()
    runner.advance()
    progress = [(event.job_id, event.samples_done, event.complete) for event in bench.reports[2:]]
    assert progress == [("a", 8, False), ("b", 4, False)]


def test_checkpoints_come_by_steps_and_by_time(bench) -> None:
    runner = bench.runner(assignment(order("j", 1_000), length_s=1_000))
    for expected in (None, None, 12, 12, 12, 24, 24):
        runner.advance()
        newest = runner._workshop.checkpoints.newest("j")
        assert (newest and newest.samples_done) == expected
    bench.clock.now_s += 60
    runner.advance()
    assert bench.saved("j").samples_done == 32


def test_cancelled_job_ends_silently_and_others_continue(bench) -> None:
    runner = bench.runner(assignment(order("a", 16), order("b", 16, seed=1)))
    runner.advance()
    runner.cancel("a")
    runner.cancel("unknown")
    while runner.advance() == "working":
        pass
    assert [type(event) for event in bench.reports_on("a")] == [RunStarted]
    assert bench.reports_on("b")[-1].samples_done == 16
    assert runner.over == {"a", "b"}
