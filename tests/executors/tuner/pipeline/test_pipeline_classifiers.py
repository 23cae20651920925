"""Pipeline-parallel jobs of a classifier: the last stage has the job's head."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from executors.lora.base_model import load_base
from executors.tuner.settings import TunerSettings
from schemas.fleet import RunFinished
from schemas.merging.commands import JobOrder
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from tests.support.classifiers import TARGETS, write_classifier, write_labelled
from tests.support.tuner_nodes import (
    DATASET,
    VALIDATION,
    Fleet,
    assigned,
    order,
    profile_of,
    released,
    workload,
)
from tests.support.tuner_tasks import LoneWorker

_FOUR = (("n1", 4),)
_LAYERS = 5


@pytest.fixture(scope="module", params=["llama", pytest.param("gpt2", marks=pytest.mark.long)])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def node(
    family: str, tuner_settings: TunerSettings, fork_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """One node with four workers, one sequence at a time."""
    root = tmp_path_factory.mktemp(f"classifier-pipelines-{family}")
    (root / "data").mkdir()
    write_labelled(root / "data" / DATASET)
    write_labelled(root / "data" / VALIDATION, records=20, seed=6)
    places = {"base_model_dir": root / "model", "dataset_root": root / "data", "micro_batch_size": 1}
    write_classifier(root / "model", family, layers=_LAYERS)
    fleet = Fleet(root, tuner_settings.model_copy(update=places))
    fleet.add("n1", gpus=4)
    yield fleet
    fleet.close()


def job(
    job_id: str,
    family: str,
    generation: int = 1,
    done: int = 0,
    *,
    iterations: int = 12,
    pipeline: bool = True,
) -> JobOrder:
    chosen = {"dropout": 0.1, "frozen_layers": 1, "target_modules": TARGETS[family]}
    work = workload(iterations, pipeline=pipeline, hyperparameters=chosen)
    return order(job_id, work, generation, resume_iterations=done)


@pytest.mark.long
def test_a_pipeline_trains_what_a_process_alone_does(node: Fleet, family: str, tmp_path: Path) -> None:
    node.assign(job("a", family), members=_FOUR)
    node.until_over("a/1")
    assert len(node.reports(RunFinished, "a")) == 1
    alone = LoneWorker(load_base(node.settings.base_model_dir), tmp_path, node.settings)
    alone.run(assigned("n1", job("a", family, pipeline=False)))
    expected, found = Fleet(tmp_path, node.settings).adapter("a"), node.adapter("a")
    assert "base_model.model.score.weight" in found
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=5e-4)
    assert node.reports(TaskEvaluated, "a")[-1].accuracy > 1 / 3


@pytest.mark.long
def test_preempted_job_gives_same_result(node: Fleet, family: str) -> None:
    node.assign(job("whole", family, iterations=60), members=_FOUR)
    node.until_over("whole/1")
    node.assign(job("b", family, iterations=60), members=_FOUR)
    node.until(lambda: "n1 b/1 run.started 0" in node.short_reports())
    node.send(released("n1", "b"))
    node.until_over("b/1")
    (ended,) = node.ends("b/1")
    assert 0 < ended.samples_done < 360
    done = ended.samples_done // 6
    node.assign(job("b", family, 2, done, iterations=60), generation=2, members=_FOUR)
    node.until_over("b/2")
    whole, parts = node.adapter("whole"), node.adapter("b")
    torch.testing.assert_close(parts, whole, rtol=0, atol=0)


@pytest.mark.long
def test_pipeline_profile_matches_single_worker(node: Fleet, family: str) -> None:
    node.send(profile_of("n1", job("p", family), gpus=4))
    node.send(profile_of("n1", job("q", family, pipeline=False)))
    node.until_over("p/1", "q/1")
    (piped,), (alone,) = (node.reports(TaskProfiled, job_id) for job_id in "pq")
    assert piped.losses == pytest.approx(alone.losses, rel=1e-4)
    assert piped.embedding == pytest.approx(alone.embedding)
