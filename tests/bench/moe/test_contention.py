"""All-to-alls during allreduces, on this machine's loopback: the measurement, without its values."""

from pathlib import Path

from bench.moe.contention import measure_contention
from bench.network import loopback, run_ranks


def test_all_to_alls_alone_and_during_allreduces(tmp_path: Path):
    first, second = run_ranks(measure_contention, loopback(2), tmp_path, size_bytes=2**16, samples=3, seed=1)
    assert (len(first["alone_s"]), len(first["beside_s"])) == (6, 3)
    assert first["allreduce_bytes"] == second["allreduce_bytes"]
    assert all(2 * 2**16 <= size <= 4 * 2**16 for size in first["allreduce_bytes"])
    assert min(*first["alone_s"], *first["beside_s"]) > 0.0
