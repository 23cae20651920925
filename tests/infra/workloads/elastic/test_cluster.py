import pytest

from infra.workloads.elastic.cluster import (
    INFERENCE_GPU,
    TRAINING_GPU,
    ElasticCluster,
    cluster_configuration,
)
from infra.workloads.elastic.jobs import SAMPLES_PER_GPU_S
from infra.workloads.timed import WorkloadError
from schemas.installed import KINDS


def test_the_default_is_the_thesis_clusters():
    assert (ElasticCluster().training_gpus, ElasticCluster().inference_gpus) == (3_544, 4_160)


def test_scaled_clusters_keep_a_server_each():
    assert ElasticCluster().scaled(0.1) == ElasticCluster(44, 52)
    assert ElasticCluster().scaled(1e-6) == ElasticCluster(1, 1)
    with pytest.raises(WorkloadError, match="scaled by 0"):
        ElasticCluster().scaled(0)


def test_three_loaned_gpus_equal_a_training_gpu():
    assert TRAINING_GPU.samples_per_s / TRAINING_GPU.gpus == SAMPLES_PER_GPU_S
    assert 3 * INFERENCE_GPU.samples_per_s == TRAINING_GPU.samples_per_s


@pytest.mark.skipif(not {"elastic", "inference"} <= set(KINDS), reason="the policies are not installed")
def test_inference_zone_lends_with_2_percent_headroom():
    cell = cluster_configuration(ElasticCluster(3, 2), KINDS["inference"].settings(kind="inference"), 0.0)
    training, inference = cell.zones
    assert [node.id for node in training.nodes] == ["train-001", "train-002", "train-003"]
    assert [node.id for node in inference.nodes] == ["infer-001", "infer-002"]
    assert (training.policy.kind, inference.policy.kind) == ("elastic", "inference")
    assert training.lending is None
    assert inference.lending is not None
    assert inference.lending.headroom == 0.02
    assert [borrower.zone for borrower in inference.lending.borrowers] == [training.id]
