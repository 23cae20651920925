"""Slots of a node whose base model is a classifier."""

from pathlib import Path

import pytest
import torch

from executors.lora.base_model import load_base
from schemas.fleet import RunFailed, RunFinished
from tests.support.classifiers import write_classifier, write_labelled
from tests.support.executors import assignment, order, write_dataset


@pytest.fixture
def classifier_bench(bench, tmp_path: Path):
    bench.base = load_base(write_classifier(tmp_path / "model", "llama"))
    write_labelled(tmp_path / "datasets" / "labelled.jsonl")
    write_dataset(tmp_path / "datasets" / "text.jsonl")
    return bench


def test_classifier_runs_share_steps_with_own_heads(classifier_bench) -> None:
    bench = classifier_bench
    for slot in (0, 1):
        one = order("one", 12, work=24, dataset="labelled.jsonl", dropout=0.1)
        two = order("two", 12, work=24, dataset="labelled.jsonl", seed=3)
        bench.carry_out(assignment(one, two, slot=slot), bench.workshop())
    for job in (one, two):
        assert isinstance(bench.reports_on(job.job_id)[-1], RunFinished)
        state, _ = bench.trained_alone(job, 24)
        torch.testing.assert_close(bench.adapter(job.job_id), state.parameters, rtol=1e-3, atol=1e-4)
    head = slice(-bench.base.layout(state.task).head_size, None)
    assert not torch.equal(bench.adapter("one")[head], bench.adapter("two")[head])


def test_unlabelled_text_fails_only_its_run(classifier_bench) -> None:
    bench = classifier_bench
    bench.carry_out(
        assignment(order("bad", 8, dataset="text.jsonl"), order("good", 8, dataset="labelled.jsonl"))
    )
    (failed,) = (event for event in bench.reports if isinstance(event, RunFailed))
    assert failed.job_id == "bad"
    assert failed.permanent
    assert "text.jsonl, line 1: text: is missing: expected" in failed.error
    assert bench.reports_on("good")[-1].samples_done == 8
