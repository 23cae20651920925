"""Throughput rows are measured on the engine itself."""

import pytest

from executors.lora.base_model import SharedBase
from executors.lora.throughput import Workload, measure_throughput, workloads


def test_a_row_says_what_each_co_resident_adapter_gets(base: SharedBase) -> None:
    (small, large) = workloads([4], [2], [16], [1, 3])
    assert large == Workload(rank=4, batch_size=2, sequence_length=16, co_resident=3)
    for workload in (small, large):
        row = measure_throughput(base, workload, steps=3)
        assert row.workload == workload
        assert row.step_s > 0
        assert row.samples_per_second == pytest.approx(2 / row.step_s)


def test_a_workload_that_the_base_cannot_take_is_refused(base: SharedBase) -> None:
    with pytest.raises(ValueError, match="500 tokens, but the base model takes 128"):
        measure_throughput(base, Workload(4, 2, 500, 1))
