"""Throughput of nodes and tasks: the model of GPT-2, its form and the shares of a node that it makes, and
the measurements."""

import csv
from itertools import product
from pathlib import Path

import pytest

from bench.workloads.measured import MEASURED, STEP_S
from bench.workloads.tasks import ACCUMULATIONS, BATCH_SIZES, LEAST_SEQUENCES_AT_ONCE
from bench.workloads.throughput import (
    BASE_MEMORY_GIB,
    FLOPS_PER_S,
    FULL_STEP_SEQUENCES,
    HALF_SPEED_SEQUENCES,
    MEMORY_GIB,
    MODELLED,
    RANKS,
    LoraShape,
    adapter_parameters,
    flops_per_sample,
    throughput_samples_per_s,
)

PROFILES = Path(__file__).parents[3] / "../shared/profiles"
PROFILE = PROFILES / "roberta-base_A100_placements.csv"
MEMORY = PROFILES / "roberta-base_A100_memory.csv"
HAS_PROFILES = pytest.mark.skipif(not PROFILE.exists(), reason="the measured profiles are not here")
TYPES = tuple(FLOPS_PER_S)


@pytest.mark.parametrize("gpu_type", TYPES)
def test_throughput_rises_with_step_below_peak(gpu_type):
    speeds = [throughput_samples_per_s(gpu_type, n) for n in (1, HALF_SPEED_SEQUENCES, 8, 144, 1e9)]
    assert speeds == sorted(speeds)
    assert speeds[1] == pytest.approx(speeds[-1] / 2)


@HAS_PROFILES
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
    tasks = FULL_STEP_SEQUENCES // 8 * MODELLED.task_samples_per_s(gpu_type, LoraShape(8, 1, 8))
    assert tasks == pytest.approx(MODELLED.node_samples_per_s(gpu_type))


@pytest.mark.parametrize(("batch", "accumulation", "rank"), list(product(BATCH_SIZES, ACCUMULATIONS, RANKS)))
def test_task_takes_twentieth_to_quarter_of_node(batch, accumulation, rank):
    shape = LoraShape(batch, min(accumulation, batch // 4), rank)
    for gpu_type in TYPES:
        compute = MODELLED.task_samples_per_s(gpu_type, shape) / MODELLED.node_samples_per_s(gpu_type)
        assert 0.05 < compute < 0.25
    assert 0.03 < MODELLED.task_memory_gib(shape) / (MEMORY_GIB["A100"] - BASE_MEMORY_GIB) < 0.23


def test_memory_binds_for_some_tasks():
    def memory_binds(gpu_type: str, shape: LoraShape) -> bool:
        memory = MODELLED.task_memory_gib(shape) / (MEMORY_GIB[gpu_type] - BASE_MEMORY_GIB)
        return memory > MODELLED.task_samples_per_s(gpu_type, shape) / MODELLED.node_samples_per_s(gpu_type)

    whole, parts = LoraShape(32, 1, 8), LoraShape(32, 4, 8)
    assert [memory_binds("A40", shape) for shape in (whole, parts)] == [True, False]
    assert not memory_binds("A100", whole)
    assert memory_binds("A100", LoraShape(8, 1, 64))


def test_accumulation_saves_the_memory_of_activations_alone():
    one, four = MODELLED.task_memory_gib(LoraShape(32, 1, 8)), MODELLED.task_memory_gib(LoraShape(32, 4, 8))
    assert MODELLED.task_memory_gib(LoraShape(8, 1, 8)) == pytest.approx(four)
    assert four > one / 4


def shapes() -> list[LoraShape]:
    """The shapes of the tasks that are drawn."""
    return [
        LoraShape(batch, min(accumulation, batch // LEAST_SEQUENCES_AT_ONCE), 8)
        for batch, accumulation in product(BATCH_SIZES, ACCUMULATIONS)
    ]


@HAS_PROFILES
def test_kept_measurements_are_those_of_the_profile():
    with PROFILE.open() as file:
        steps = {
            int(row["local_bsz"]): float(row["step_time"])
            for row in csv.DictReader(file)
            if row["placement"] == "1"
        }
    assert {batch: round(steps[batch], 5) for batch in STEP_S} == STEP_S
    assert max(steps) == max(STEP_S)
    with MEMORY.open() as file:
        memory = {int(row["local_bsz"]): float(row["gpu_memory"]) for row in csv.DictReader(file)}
    for batch, gib in memory.items():
        lined = MEASURED.base_memory_gib + MEASURED.task_memory_gib(LoraShape(batch, 1, 8))
        assert lined == pytest.approx(gib, rel=0.002)


@pytest.mark.parametrize("gpu_type", TYPES)
def test_measured_task_takes_most_of_a_node(gpu_type):
    node = MEASURED.node_samples_per_s(gpu_type)
    assert node == MODELLED.node_samples_per_s(gpu_type)
    shares = [MEASURED.task_samples_per_s(gpu_type, shape) / node for shape in shapes()]
    assert min(shares) == pytest.approx(0.66, abs=0.01)
    assert max(shares) == pytest.approx(0.96, abs=0.01)
