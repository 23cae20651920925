"""Jobs from measured profiles: a small folder of that form, and the real one where it is."""

import gzip
import json
from pathlib import Path

import pytest

from bench.merging.fluid import Cluster
from bench.merging.fluid_data import read_jobs, read_switch_s
from bench.merging.published import CLUSTER, PUBLISHED_S, as_published

PROFILES = Path(__file__).parents[3] / "../shared/profiles"

measured = pytest.mark.skipif(not PROFILES.exists(), reason="the measured profiles are not here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks on one or two nodes of two GPUs."""
    curves = {
        "wnli": {"1e-3": {"8": {"eval_accuracy": [0.5, 0.7, 0.6], "eval_accuracy_epoch": [0.9, 1.9, 2.9]}}},
        "rte": {"1e-3": {"1": {"eval_f1": [0.5, 0.6], "eval_f1_epoch": [1.0, 2.0]}}},
    }
    (tmp_path / "learning_tiny.json.gz").write_bytes(gzip.compress(json.dumps({"single": curves}).encode()))
    (tmp_path / "tiny_V100_placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n"
        "1,2,0.2,0.0\n1,8,0.7,0.0\n1,16,1.6,0.0\n2,8,0.75,0.05\n2,2,0.25,0.05\n11,2,0.4,0.2\n11,8,0.9,0.2\n"
    )
    (tmp_path / "tiny_V100_scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,4,4,0.65,0.25\n6,4,4,0.9,0.5\n"
    )
    (tmp_path / "tiny_V100_context_switch.csv").write_text("app,time_cost\nwnli,12.5\nrte,11.0\n")
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "FM-9-tiny.csv").write_text(
        "name,submission_time,application,num_gpus,target_batch_size,target_lr,target_gradient_steps,target_metric\n"
        "a,45,tiny@wnli,1,16,1e-3,8,0.7\n"
        "b,60,tiny@rte,2,16,1e-3,1,0.61\n"
    )
    return tmp_path


def test_a_job_has_the_iterations_until_its_curve_first_reaches_its_target(folder: Path) -> None:
    reaches, never = read_jobs(folder, "FM-9", "tiny", Cluster(2, 2))
    assert (reaches.job_id, reaches.submitted_s, reaches.asked_gpus) == ("a", 45.0, 1)
    assert reaches.iterations == 1.9 * 10  # 159 samples in batches of 16
    assert never.iterations == 10.0 * 39


def test_a_step_is_as_fast_as_accumulation_makes_it(folder: Path) -> None:
    steps = read_jobs(folder, "FM-9", "tiny", Cluster(2, 2))[0].step_s
    assert steps == pytest.approx(
        {
            (1,): 1.4,  # twice 8
            (2,): 0.75,  # 8 on each
            (1, 1): 0.9,
            (2, 2): 0.65,  # measured for so many GPUs on so many nodes only
        }
    )


def test_a_switch_takes_what_the_slowest_cold_start_does(folder: Path) -> None:
    assert read_switch_s(folder, "tiny") == 12.5


@measured
@pytest.mark.parametrize("model", ["roberta-base", "vit"])
def test_the_measured_workloads_can_be_read(model: str) -> None:
    jobs = read_jobs(PROFILES, "FM-1", model, CLUSTER)
    assert len(jobs) == {"roberta-base": 120, "vit": 320}[model]
    assert all(CLUSTER.compact(1) in each.step_s and each.iterations > 0 for each in jobs)


@pytest.mark.long
@measured
def test_schemes_that_work_alike_come_near_the_published_values() -> None:
    outcomes = as_published(PROFILES, "roberta-base")
    for name in ("srtf", "tiresias", "titan"):
        assert outcomes[name].average_s == pytest.approx(PUBLISHED_S["roberta-base"][name], rel=0.05)
