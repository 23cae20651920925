"""Measurement of a machine: real steps by micro-batch, within bounds of time, memory and size."""

from dataclasses import dataclass

import pytest

from executors.lora.engine import FusedEngine
from executors.lora.slots.profiling import (
    LEAST_STEPS,
    MOST_STEPS,
    Bounds,
    MachineSettings,
    ProfileError,
    profile,
    profile_machine,
    usual_sequence_length,
)
from schemas.lora import Dataset, LoraHyperparameters
from schemas.profiles import ProfileKey

DATA = Dataset(path="ragged.jsonl", samples=24)
SHAPE = LoraHyperparameters(rank=4, sequence_length=24)
PLENTY = Bounds.doubling(most_s=1e6, most_gib=64.0, largest=8)


@dataclass
class TickingClock:
    """A clock that advances with each reading."""

    tick_s: float
    now_s: float = 0.0

    def time_s(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


def sizes(found) -> list[int]:
    return [point.micro_batch_size for point in found.points]


def test_micro_batches_double_up_to_largest(engine: FusedEngine) -> None:
    found = profile(engine, TickingClock(1e-3), DATA, SHAPE, "cpu", PLENTY)
    assert (sizes(found), found.end) == ([1, 2, 4, 8], "largest")
    assert {point.steps for point in found.points} == {MOST_STEPS}
    assert len(found.losses) == MOST_STEPS + 1
    memory = [point.memory_gib for point in found.points]
    assert memory == sorted(memory)
    assert memory[0] > 0
    assert engine.job_ids == ()


def test_chosen_micro_batches_are_measured(engine: FusedEngine) -> None:
    bounds = Bounds(most_s=1e6, most_gib=64.0, sizes=(3, 5))
    assert sizes(profile(engine, TickingClock(1e-3), DATA, SHAPE, "cpu", bounds)) == [3, 5]


def test_measurement_ends_with_its_time(engine: FusedEngine) -> None:
    clock = TickingClock(1.0)
    found = profile(engine, clock, DATA, SHAPE, "cpu", Bounds.doubling(90.0, 64.0, 4_096))
    assert found.end == "time"
    assert clock.now_s < 100.0
    assert all(point.steps >= LEAST_STEPS for point in found.points[:-1])


def test_measurement_ends_before_its_memory(engine: FusedEngine) -> None:
    largest = profile(engine, TickingClock(1e-3), DATA, SHAPE, "cpu", PLENTY).points[-1].memory_gib
    bounds = Bounds.doubling(1e6, largest, 64)
    found = profile(engine, TickingClock(1e-3), DATA, SHAPE, "cpu", bounds)
    assert found.end == "memory"
    assert max(sizes(found)) < 16


def test_time_without_step_is_an_error(engine: FusedEngine) -> None:
    with pytest.raises(ProfileError, match=r"no step was measured within 1 s"):
        profile(engine, TickingClock(10.0), DATA, SHAPE, "cpu", Bounds.doubling(1.0, 64.0, 8))


def test_equal_seeds_measure_equal_steps(base, datasets) -> None:
    def losses(seed: int) -> tuple[float, ...]:
        shape = SHAPE.model_copy(update={"seed": seed})
        return profile(FusedEngine(base, datasets), TickingClock(1e-3), DATA, shape, "cpu", PLENTY).losses

    assert losses(1) == losses(1) != losses(2)


def test_length_covers_nearly_all_records(base, datasets) -> None:
    assert usual_sequence_length(base, datasets, "ragged.jsonl") <= usual_sequence_length(
        base, datasets, "long.jsonl"
    )
    assert usual_sequence_length(base, datasets, "long.jsonl") == base.longest_sequence_tokens


def test_machine_is_measured_by_its_files(llama_directory, dataset_folder) -> None:
    settings = MachineSettings(
        model=llama_directory, dataset=dataset_folder / "ragged.jsonl", gpu_type="A40", most_s=60.0, largest=2
    )
    found = profile_machine(settings, SHAPE, finds_length=False)
    assert sizes(found) == [1, 2]
    key = ProfileKey(**found.key)
    assert (key.sequence_tokens, key.rank, key.precision) == (32, 4, "float32")
    assert {point.gpu_type for point in found.points} == {"A40"}
    assert all(point.tokens_per_sample <= 24 for point in found.points)
