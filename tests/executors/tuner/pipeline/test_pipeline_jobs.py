"""Pipeline-parallel jobs on a node: profiled, trained, switched and lost like others."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from executors.lora.base_model import load_base
from executors.lora.shared_base import SharedBase
from executors.tuner.settings import TunerSettings
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.merging.commands import JobOrder
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from tests.support.tuner_nodes import Fleet, assigned, order, profile_of, released, workload
from tests.support.tuner_tasks import LoneWorker

_FOUR = (("n1", 4),)
_LONG = 100_000
_HYPERPARAMETERS = {"dropout": 0.1, "frozen_layers": 1, "gradient_checkpointing": True}


@pytest.fixture(scope="module")
def settings(tuner_settings: TunerSettings, deep_directory: Path) -> TunerSettings:
    """One sequence at a time, wherever it is trained."""
    return tuner_settings.model_copy(update={"base_model_dir": deep_directory, "micro_batch_size": 1})


@pytest.fixture(scope="module")
def node(
    settings: TunerSettings, fork_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """One node with four workers for all tests."""
    fleet = Fleet(tmp_path_factory.mktemp("pipelines"), settings)
    fleet.add("n1", gpus=4)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def deep_base(deep_directory: Path) -> SharedBase:
    return load_base(deep_directory)


def job(job_id: str, iterations: int = 12, generation: int = 1, done: int = 0, **fields: object) -> JobOrder:
    work = workload(iterations, pipeline=True, hyperparameters=_HYPERPARAMETERS, **fields)
    return order(job_id, work, generation, resume_iterations=done)


def alone(job_id: str, base: SharedBase, settings: TunerSettings, folder: Path) -> dict[str, torch.Tensor]:
    """Return the parameters that one process trains without a pipeline."""
    work = workload(12, hyperparameters=_HYPERPARAMETERS)
    LoneWorker(base, folder, settings).run(assigned("n1", order(job_id, work)))
    return Fleet(folder, settings).adapter(job_id)


@pytest.mark.long
def test_a_job_is_profiled_on_four_workers(node: Fleet) -> None:
    node.send(profile_of("n1", job("p"), gpus=4, iterations=9))
    node.until_over("p/1")
    assert len(node.reports(RunStarted, "p")) == 1
    (report,) = node.reports(TaskProfiled, "p")
    assert len(report.losses) == 9
    assert report.losses[-1] < report.losses[0]
    assert 0 < report.accuracy < 1
    assert report.dataset_samples == 48
    (step,) = report.steps
    assert (step.gpus, step.nodes, step.micro_batch_size, step.accumulation_steps) == (4, 1, 1, 6)
    assert 0 < step.exchange_s < step.step_s
    assert report.memory_gib > 0
    assert report.loader_s > 0
    assert node.checkpoints("p") == []
    # The embedding is of the whole backbone, as for a job on one worker.
    node.send(profile_of("n1", order("q", workload(hyperparameters=_HYPERPARAMETERS)), iterations=9))
    node.until_over("q/1")
    (other,) = node.reports(TaskProfiled, "q")
    assert other.embedding == pytest.approx(report.embedding)
    assert other.losses == pytest.approx(report.losses, rel=1e-4)
    assert other.accuracy == pytest.approx(report.accuracy)
    assert other.accuracy_after_epoch == pytest.approx(report.accuracy_after_epoch)


@pytest.mark.long
def test_pipeline_adapter_matches_single_process(
    node: Fleet, deep_base: SharedBase, settings: TunerSettings, deep_directory: Path, tmp_path: Path
) -> None:
    node.assign(job("a"), members=_FOUR)
    node.until_over("a/1")
    (finished,) = node.reports(RunFinished, "a")
    assert finished.samples_done == 72
    evaluations = node.reports(TaskEvaluated, "a")
    assert [each.iterations for each in evaluations][-1] == 12
    assert {(each.step.gpus, each.step.accumulation_steps) for each in evaluations} == {(4, 6)}
    expected = alone("a", deep_base, settings, tmp_path)
    found = node.adapter("a")
    assert found.keys() == expected.keys()
    for name, matrix in expected.items():
        torch.testing.assert_close(found[name], matrix, rtol=1e-3, atol=1e-4)
    folder = node.root / "output" / "c" / "u" / "a"
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(deep_directory), folder)
    logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    assert torch.isfinite(logits).all()


@pytest.mark.long
def test_a_job_is_done_at_its_accuracy(node: Fleet) -> None:
    node.assign(job("t", _LONG, accuracy=0.01), members=_FOUR)
    node.until_over("t/1")
    (finished,) = node.reports(RunFinished, "t")
    assert finished.samples_done < 6 * _LONG
    assert node.reports(TaskEvaluated, "t")[-1].accuracy >= 0.01


@pytest.mark.long
def test_preempted_job_leaves_workers_to_next(node: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="executors.tuner.runner")
    node.assign(job("whole", 20), members=_FOUR)
    node.until_over("whole/1")
    pids = node.nodes["n1"].runner.pids

    node.assign(job("b", 20), members=_FOUR)
    node.until(lambda: node.reports(RunStarted, "b"))
    # Both commands are there before the node turns, as a plan sends them.
    node.send(released("n1", "b"))
    node.assign(job("c", _LONG), members=_FOUR)
    node.until(lambda: any(node.ends("b/1")))
    (ended,) = node.ends("b/1")
    node.until(lambda: node.reports(RunStarted, "c"))
    # Back again, now in the first direction.
    node.send(released("n1", "c"))
    node.assign(job("b", 20, 2, ended.samples_done // 6), generation=2, members=_FOUR)
    node.until_over("c/1", "b/2")
    assert node.nodes["n1"].runner.pids == pids

    started = {each.run_id: each.samples_done for each in node.reports(RunStarted)}
    assert started["b/2"] == ended.samples_done > 0
    whole, parts = node.adapter("whole"), node.adapter("b")
    assert all(torch.equal(parts[name], matrix) for name, matrix in whole.items())
    # A worker reports for each task how long it was idle before.
    switches = [line.partition(" switch_gap_s")[0] for line in caplog.messages if "switched" in line]
    assert switches.count("task switched jobs=b overlaps=false") == 4
    assert switches.count("task switched jobs=c overlaps=true") == 4
    assert switches.count("task switched jobs=b overlaps=true") == 4


@pytest.mark.long
def test_newer_generation_replaces_running_one(node: Fleet) -> None:
    """The old one is over while the new one's workers meet, at the same place."""
    node.assign(job("again", _LONG), members=_FOUR)
    for generation in range(2, 7):
        node.until(lambda least=generation - 1: len(node.reports(RunStarted, "again")) >= least)
        before = len(node.reports(TaskEvaluated, "again"))
        node.until(lambda least=before: len(node.reports(TaskEvaluated, "again")) > least)
        known = node.reports(TaskEvaluated, "again")[-1].iterations
        node.assign(job("again", _LONG, generation, known), generation=generation, members=_FOUR)
    node.until(lambda: len(node.reports(RunStarted, "again")) == 6)
    node.send(released("n1", "again", generation=6))
    node.until_over(*(f"again/{generation}" for generation in range(1, 7)))
    assert not node.reports(RunFailed, "again")
    # Each goes on from where the one before has ended.
    started = {each.run_id: each.samples_done for each in node.reports(RunStarted, "again")}
    for generation in range(1, 6):
        (ended,) = node.ends(f"again/{generation}")
        assert started[f"again/{generation + 1}"] == ended.samples_done > 0


@pytest.mark.long
def test_a_withdrawn_job_leaves_nothing(node: Fleet) -> None:
    node.assign(job("w", _LONG), members=_FOUR)
    node.until(lambda: node.reports(RunStarted, "w"))
    node.send(released("n1", "w", reason="withdrawn"))
    node.until_over("w/1")
    assert node.short_reports("w")[-1] == "n1 w/1 run.progressed 0 complete"
    assert node.checkpoints("w") == []


def test_bad_data_fails_the_run_for_good(node: Fleet) -> None:
    node.assign(job("bad", dataset="bad.jsonl"), members=_FOUR)
    node.send(profile_of("n1", job("bad-too", dataset="bad.jsonl"), gpus=4))
    node.until_over("bad/1", "bad-too/1")
    for job_id in ("bad", "bad-too"):
        (failed,) = node.reports(RunFailed, job_id)
        assert failed.permanent
        assert failed.error.startswith("dataset.path: bad.jsonl, line 1: not JSON")


@pytest.mark.long
@pytest.mark.parametrize("reason", ["bad data", "withdrawn"])
def test_task_without_successor_ends_normally(node: Fleet, reason: str) -> None:
    first, second = f"first-{reason[0]}", f"second-{reason[0]}"
    node.assign(job(first, _LONG), members=_FOUR)
    node.until(lambda: node.reports(RunStarted, first))
    node.send(released("n1", first))
    if reason == "bad data":
        node.assign(job(second, dataset="bad.jsonl"), members=_FOUR)
    else:
        node.assign(job(second), members=_FOUR)
        node.turn()
        node.send(released("n1", second, reason="withdrawn"))
    node.until_over(f"{first}/1", f"{second}/1")
    (ended,) = node.ends(f"{first}/1")
    assert isinstance(ended, RunProgressed)
    assert node.checkpoints(first) == [f"1-{ended.samples_done}"]
    (other,) = node.ends(f"{second}/1")
    assert isinstance(other, RunFailed) == (reason == "bad data")


def test_killed_worker_fails_run_and_next_resumes(
    node: Fleet,
) -> None:
    node.assign(job("k", _LONG), members=_FOUR)
    node.until(lambda: node.reports(RunStarted, "k"))
    node.send(released("n1", "k"))
    node.until_over("k/1")
    (ended,) = node.ends("k/1")
    done = ended.samples_done // 6
    node.assign(job("k", _LONG, 2, done), generation=2, members=_FOUR)
    node.until(lambda: len(node.reports(RunStarted, "k")) == 2)
    os.kill(node.nodes["n1"].runner.pids[2], signal.SIGKILL)
    node.until_over("k/2")
    (failed,) = node.reports(RunFailed, "k")
    assert not failed.permanent
    assert failed.error == "a rank process has ended with signal 9 and no final message"
    node.assign(job("k", _LONG, 3, done), generation=3, members=_FOUR)
    node.until(lambda: len(node.reports(RunStarted, "k")) == 3)
    started = [each.samples_done for each in node.reports(RunStarted, "k")]
    assert started == [0, ended.samples_done, ended.samples_done]
    node.send(released("n1", "k", generation=3, reason="withdrawn"))
    node.until_over("k/3")


@pytest.mark.long
def test_plain_and_pipeline_tasks_share_workers(node: Fleet) -> None:
    pids = node.nodes["n1"].runner.pids
    node.assign(order("d", workload(_LONG)), members=_FOUR)
    node.until(lambda: node.reports(RunStarted, "d"))
    node.send(released("n1", "d"))
    node.assign(job("e", 3), members=_FOUR)
    node.until_over("d/1", "e/1")
    node.assign(order("f", workload(3)), members=_FOUR)
    node.until_over("f/1")
    assert {each.job_id for each in node.reports(RunFinished)} >= {"e", "f"}
    assert node.nodes["n1"].runner.pids == pids


@pytest.mark.long
def test_two_pipelines_share_batches_until_one_ends(
    node: Fleet, deep_base: SharedBase, settings: TunerSettings, tmp_path: Path
) -> None:
    node.close()
    node.add("n1", gpus=8, checkpoint_s=0.01)
    node.assign(job("g"), members=(("n1", 8),))
    node.until(lambda: node.reports(RunProgressed, "g"))
    node.send(released("n1", "g", reason="reallocated"))
    node.until_over("g/1")
    (ended,) = list(node.ends("g/1"))
    assert f"1-{ended.samples_done}" in node.checkpoints("g")
    node.assign(job("g", 12, 2, ended.samples_done // 6), generation=2, members=_FOUR)
    node.until_over("g/2")
    expected, found = alone("g", deep_base, settings, tmp_path), node.adapter("g")
    for name, matrix in expected.items():
        torch.testing.assert_close(found[name], matrix, rtol=1e-3, atol=1e-4)
