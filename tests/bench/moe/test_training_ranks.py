"""Small runs of training, on this machine's loopback."""

from dataclasses import asdict
from typing import Any

import pytest

from bench.moe.training import RankStep, read_steps, step_times
from bench.moe.training_rank import BASELINE, UNCUT_BYTES, ModelShape, Variant, measure_training
from bench.network import loopback, run_ranks
from tests.support.micro_ops import overlaps

SHAPE = ModelShape(experts=2, layers=2, hidden=64, dense=64, inner=16, tokens=32, bucket_bytes=2**15)
LINA = Variant("lina", partition_bytes=2**13, chunks=2)
PACKED = Variant("packed", partition_bytes=2**13, chunks=2, per_device=2)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(
        measure_training,
        loopback(2),
        tmp_path_factory.mktemp("ranks"),
        shape=asdict(SHAPE),
        variants=[asdict(each) for each in (BASELINE, LINA, PACKED)],
        rounds=2,
        seed=0,
        partitions_bytes=[UNCUT_BYTES, 2**13],
    )


def rank_steps(results: list[dict[str, Any]], name: str) -> list[RankStep]:
    return [RankStep.read(result["steps"][name][0]) for result in results]


def test_baseline_layer_has_four_all_to_alls(results: list[dict[str, Any]]) -> None:
    (first, _) = rank_steps(results, BASELINE.name)

    assert [len(first.all_to_alls(direction)) for direction in ("forward", "backward")] == [4, 4]


def test_micro_ops_of_kinds_never_overlap(
    results: list[dict[str, Any]],
) -> None:
    steps = rank_steps(results, LINA.name)

    assert [len(steps[0].all_to_alls(direction)) for direction in ("forward", "backward")] == [8, 8]
    assert len(steps[0].allreduces) == SHAPE.layers * SHAPE.dense_bytes // LINA.partition_bytes
    assert not overlaps(record for step in steps for record in step.micro_ops)


def test_fully_replicated_experts_exchange_no_tokens(
    results: list[dict[str, Any]],
) -> None:
    steps = rank_steps(results, PACKED.name)

    times = step_times(steps, group_size=1)
    assert times.all_to_all_forward_s == times.all_to_all_backward_s == 0.0
    assert any("expert gradient" in record.label for record in steps[0].allreduces)


def test_rounds_and_averages_match_request(results: list[dict[str, Any]]) -> None:
    assert len(read_steps(results, LINA.name, 2)) == 2
    assert [[len(times_s) for times_s in result["averages_s"]] for result in results] == [[4, 4], [4, 4]]
