"""Where finished adapters lie."""

from pathlib import Path

from executors.lora.slots.checkpoints import AdapterOutput
from tests.support.executors import order


def test_same_job_ids_keep_separate_adapters(bench, tmp_path: Path) -> None:
    state, _ = bench.trained_alone(order("j", 8), 8)
    other, _ = bench.trained_alone(order("j", 8, seed=1), 8)
    first = AdapterOutput(tmp_path, "c", bench.base).publish(state, "u")
    second = AdapterOutput(tmp_path, "d", bench.base).publish(other, "u")
    third = AdapterOutput(tmp_path, "c", bench.base).publish(other, "v")
    assert (first.path, second.path, third.path) == ("c/u/j", "d/u/j", "c/v/j")
    assert first.digest != second.digest == third.digest
    assert AdapterOutput(tmp_path, "c", bench.base).publish(state, "u") == first
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("?/?/*/*.safetensors")) == [
        "c/u/j/adapter_model.safetensors",
        "c/v/j/adapter_model.safetensors",
        "d/u/j/adapter_model.safetensors",
    ]
