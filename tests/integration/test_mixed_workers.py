"""Real training through Kafka on nodes of unlike speed, which the zone counts as equal until measured."""

import shutil
from collections.abc import Iterator
from statistics import median

import pytest
import yaml

from executors.elastic.rank import JobNotes
from executors.gang.checkpoints import TrainingState
from executors.lora.default_base import default_base_directory
from executors.lora.task_files import TRAINING_STATE
from executors.node.places import checkpoint_root
from infra.demo.data import write_datasets
from infra.deployment.deployment_folders import Folders
from schemas.elastic.outcomes import JobProfiled, JobResized
from schemas.elastic.workload import ElasticTerms, ElasticWorkload
from schemas.fleet import RunProgressed
from schemas.jobs import JobSubmitted
from tests.integration.watched_deployment import WatchedDeployment, watched

pytestmark = pytest.mark.timeout(600)

CELL, ZONE = "mixed", "training"
SEQUENCE_S = {"n1": 0.04, "n2": 0.06, "n3": 0.16}
"""Time of a sequence by node: many times that of its computation, so a busy machine changes it little. With
even shares, all would wait for n3 and be slower than n1 alone."""
BATCH = 16
SETTLED_SAMPLES = 16 * BATCH
"""Samples of a generation until its shares are by measured speed: the first decisions are after 1, 2, 4 and 8
steps."""
CELLS = {
    "cells": [
        {
            "cell": CELL,
            "slot_s": 4.0,
            "node_timeout_s": 20.0,
            "tariffs": [{"name": "flat", "micros_per_kwh": [0] * 24}],
            "zones": [
                {
                    "id": ZONE,
                    "base_model": "tiny-llama",
                    "base_model_memory_gib": 4.0,
                    "gpu_types": [{"name": "any", "samples_per_s": 25.0, "memory_gib": 48.0}],
                    "nodes": [{"id": node, "gpu_type": "any", "tariff": "flat"} for node in SEQUENCE_S],
                    "policy": {
                        "kind": "elastic",
                        "reference_gpu_type": "any",
                        "interval_s": 1.0,
                        "scaling_pause_s": 0.5,
                    },
                }
            ],
        }
    ]
}


@pytest.fixture(scope="module")
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedDeployment]:
    folders = Folders(tmp_path_factory.mktemp("mixed"))
    folders.create()
    write_datasets(folders.datasets, seed=1)
    shutil.copytree(default_base_directory(), folders.models / "tiny-llama")
    cells = folders.root / "cells.yaml"
    cells.write_text(yaml.safe_dump(CELLS))
    throttles = {node: {"MILLRACE_LEAST_SEQUENCE_S": str(time_s)} for node, time_s in SEQUENCE_S.items()}
    settings = {"MILLRACE_CHECKPOINT_S": "1"}
    with watched(WatchedDeployment, kafka, cells, folders, settings, len(throttles), throttles) as fleet:
        yield fleet


def samples_per_s(fleet: WatchedDeployment, gpus: int) -> list[tuple[int, float]]:
    """Return the samples done and the measured speed by each report of so many workers."""
    reports = [(run.samples_done, run.measured) for run in fleet.events(RunProgressed)]
    return [
        (done, steps.samples_per_s) for done, steps in reports if steps is not None and steps.gpus == gpus
    ]


def known_sequence_s(fleet: WatchedDeployment, job_id: str) -> list[float]:
    """Return the time of a sequence on each worker, by a job's newest checkpoint, ascending."""
    root = checkpoint_root(fleet.folders.executors, CELL) / job_id
    newest = max(root.glob(f"*/{TRAINING_STATE}"), key=lambda path: path.stat().st_mtime)
    state = TrainingState.model_validate_json(newest.read_bytes())
    known = JobNotes.model_validate(state.notes).workers
    return sorted(time_ns / 1e9 for time_ns in known.sequence_ns.values())


def test_slow_workers_make_a_job_faster(fleet: WatchedDeployment) -> None:
    work_samples = 10**6
    workload = ElasticWorkload.model_validate(
        {
            "work_samples": work_samples,
            "model": "tiny-llama",
            "dataset": {"path": "language.jsonl", "samples": 24},
            "hyperparameters": {
                "global_batch_size": BATCH,
                "micro_batch_size": BATCH,
                "sequence_length": 16,
            },
            "max_workers": len(SEQUENCE_S),
        }
    )
    fleet.send(
        JobSubmitted(cell=CELL, zone=ZONE, user="ann", job_id="j", workload=workload, terms=ElasticTerms())
    )
    fleet.until(lambda: samples_per_s(fleet, 3), "it has all workers, which are measured")
    started, grown = fleet.decided(JobResized)[:2]
    assert [server.node for server in started.servers] == ["n1"], "the fast worker is measured alone"
    assert (started.workers, grown.workers) == (1, 3)

    def settled() -> list[float]:
        reports = samples_per_s(fleet, 3)
        return [speed for done, speed in reports if done > reports[0][0] + SETTLED_SAMPLES]

    fleet.until(lambda: len(settled()) >= 5, "shares by measured speed, and steps with them")
    alone = median(speed for _, speed in samples_per_s(fleet, 1))
    assert median(settled()) > alone
    fast_s, _, slow_s = known_sequence_s(fleet, "j")
    assert slow_s > 1.5 * fast_s, "shares are by these, which are four times as long on n3"
    # The zone expected three times the speed of one; now it counts on what the three are measured to have.
    profiled = next(each for each in fleet.decided(JobProfiled) if each.workers == 3)
    measured, expected = profiled.samples_per_s, profiled.expected_samples_per_s
    assert measured < expected
    assert work_samples / profiled.remaining_s == pytest.approx(measured, rel=0.4)
    fleet.assert_proven()
