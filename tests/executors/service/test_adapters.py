"""Where finished adapters lie."""

from pathlib import Path

from executors.service.adapters import AdapterOutput
from tests.support.executors import order


def test_jobs_of_two_cells_with_the_same_id_keep_their_adapters_apart(bench, tmp_path: Path) -> None:
    state, _ = bench.trained_alone(order("j", 8), 8)
    other, _ = bench.trained_alone(order("j", 8, seed=1), 8)
    first = AdapterOutput(tmp_path, "c", bench.base).publish(state)
    second = AdapterOutput(tmp_path, "d", bench.base).publish(other)
    assert (first.path, second.path) == ("c/j", "d/j")
    assert first.digest != second.digest
    assert AdapterOutput(tmp_path, "c", bench.base).publish(state) == first
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("?/*/*.safetensors")) == [
        "c/j/adapter_model.safetensors",
        "d/j/adapter_model.safetensors",
    ]
