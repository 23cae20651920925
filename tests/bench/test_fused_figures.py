"""The fused figures are measured, named and consistent."""

from pathlib import Path

import pytest

from bench.spine.fused import measure_fused
from executors.lora.default_base import Recipe, default_base_directory


@pytest.mark.long
def test_fused_figures_are_measured_on_real_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))
    recipe = Recipe(vocabulary_size=300, hidden_features=16, layers=1, text_bytes=20_000, steps=10)
    result = measure_fused(adapters=2, quick=True, seed=0, base_directory=default_base_directory(recipe))
    speedup, memory = result.measurements
    assert (speedup.name, memory.name) == ("fused_speedup", "fused_memory_ratio")
    assert speedup.value > 0
    # One process of two holds no less than one of one, and not as much as two.
    assert 0.45 < memory.value < 0.9


def test_one_adapter_has_nothing_to_fuse() -> None:
    with pytest.raises(ValueError, match="at least two"):
        measure_fused(adapters=1, quick=True, seed=0)
