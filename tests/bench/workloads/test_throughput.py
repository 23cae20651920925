"""The model of GPT-2's throughput: its form, its consistency, and the shares of a node that it makes."""

import csv
from itertools import product
from pathlib import Path

import pytest

from bench.workloads.tasks import ACCUMULATIONS, BATCH_SIZES
from bench.workloads.throughput import (
    BASE_MEMORY_GIB,
    FLOPS_PER_S,
    FULL_STEP_SEQUENCES,
    HALF_SPEED_SEQUENCES,
    MEMORY_GIB,
    RANKS,
    LoraShape,
    adapter_parameters,
    flops_per_sample,
    node_samples_per_s,
    task_memory_gib,
    task_samples_per_s,
    throughput_samples_per_s,
)

PROFILE = Path(__file__).parents[3] / "../shared/profiles/roberta-base_A100_placements.csv"
TYPES = tuple(FLOPS_PER_S)


@pytest.mark.parametrize("gpu_type", TYPES)
def test_throughput_rises_with_step_below_peak(gpu_type):
    speeds = [throughput_samples_per_s(gpu_type, n) for n in (1, HALF_SPEED_SEQUENCES, 8, 144, 1e9)]
    assert speeds == sorted(speeds)
    assert speeds[1] == pytest.approx(speeds[-1] / 2)


@pytest.mark.skipif(not PROFILE.exists(), reason="the measured profiles are not here")
def test_roofline_matches_measured_model():
    with PROFILE.open() as file:
        alone = [row for row in csv.DictReader(file) if row["placement"] == "1"]
    assert len(alone) == 20
    for row in alone:
        batch = int(row["local_bsz"])
        assert batch / float(row["step_time"]) == pytest.approx(
            198.0 * batch / (batch + HALF_SPEED_SEQUENCES), rel=0.007
        )


def test_adapters_are_counted_as_peft_does():
    # c_attn of GPT-2 maps 768 to 2304 features, in each of 12 layers.
    assert adapter_parameters(8) == 12 * (768 * 8 + 8 * 2_304)


def test_rank_costs_less_than_planned_margin():
    assert flops_per_sample(max(RANKS)) / flops_per_sample(min(RANKS)) < 1.03


@pytest.mark.parametrize("gpu_type", TYPES)
def test_full_steps_fill_node(gpu_type):
    tasks = FULL_STEP_SEQUENCES // 8 * task_samples_per_s(gpu_type, LoraShape(8, 1, 8))
    assert tasks == pytest.approx(node_samples_per_s(gpu_type))


@pytest.mark.parametrize(("batch", "accumulation", "rank"), list(product(BATCH_SIZES, ACCUMULATIONS, RANKS)))
def test_task_takes_twentieth_to_quarter_of_node(batch, accumulation, rank):
    shape = LoraShape(batch, min(accumulation, batch // 4), rank)
    for gpu_type in TYPES:
        compute = task_samples_per_s(gpu_type, shape) / node_samples_per_s(gpu_type)
        assert 0.05 < compute < 0.25
    assert 0.03 < task_memory_gib(shape) / (MEMORY_GIB["A100"] - BASE_MEMORY_GIB) < 0.23


def test_memory_binds_for_some_tasks():
    def memory_binds(gpu_type: str, shape: LoraShape) -> bool:
        memory = task_memory_gib(shape) / (MEMORY_GIB[gpu_type] - BASE_MEMORY_GIB)
        return memory > task_samples_per_s(gpu_type, shape) / node_samples_per_s(gpu_type)

    whole, parts = LoraShape(32, 1, 8), LoraShape(32, 4, 8)
    assert [memory_binds("A40", shape) for shape in (whole, parts)] == [True, False]
    assert not memory_binds("A100", whole)
    assert memory_binds("A100", LoraShape(8, 1, 64))


def test_accumulation_saves_the_memory_of_activations_alone():
    one, four = task_memory_gib(LoraShape(32, 1, 8)), task_memory_gib(LoraShape(32, 4, 8))
    assert task_memory_gib(LoraShape(8, 1, 8)) == pytest.approx(four)
    assert four > one / 4
