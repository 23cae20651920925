"""All-to-alls beside allreduces, on this machine's loopback: that they are measured, not what is measured."""

import os
from pathlib import Path

import pytest

from bench.moe.contention import measure_contention, sample_contention
from bench.network.links import loopback
from bench.network.ranks import run_ranks


def test_all_to_alls_are_timed_alone_and_contended(tmp_path: Path) -> None:
    results = run_ranks(measure_contention, loopback(2), tmp_path, size_bytes=2**16, samples=3, seed=1)

    first, second = results
    assert (len(first["alone_s"]), len(first["beside_s"])) == (6, 3)
    assert first["allreduce_bytes"] == second["allreduce_bytes"]
    assert all(2 * 2**16 <= size <= 4 * 2**16 for size in first["allreduce_bytes"])
    assert min(*first["alone_s"], *first["beside_s"]) > 0.0


def test_loopback_without_root_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    sampled = sample_contention(2, 2**16, samples=3, seed=0)

    assert "loopback" in sampled.network
    assert "need root" in sampled.network
    assert len(sampled.slowdowns) == 3
    assert sampled.alone_s > 0.0
