"""Drawn routing, and ranks that serve it."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.moe.inference_rank import DrawnRouting, RoutingSetting, serve
from bench.network import loopback, run_ranks

SETTING = RoutingSetting("here", experts=6, devices=2, layers=3, tokens=64, skew=1.0)


def shares(setting: RoutingSetting, batches: range) -> np.ndarray:
    routing = DrawnRouting(setting, 1)
    counts = sum(
        np.bincount(routing.batch(number)[:, :, 0].ravel(), minlength=setting.experts) for number in batches
    )
    return np.asarray(counts) / np.sum(counts)


def test_seed_determines_batches():
    one, same, other = (DrawnRouting(SETTING, seed).batch(3) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert one.shape == (2, 64, 3)
    assert 0 <= one.min() <= one.max() < 6


def test_larger_skew_favours_first_expert():
    even, skewed, strong = (
        shares(replace(SETTING, skew=skew, tokens=2_000), range(20)).max() for skew in (0.0, 1.0, 2.0)
    )
    assert even < 0.25 < skewed < 0.5 < strong


def test_shift_changes_popularity_not_paths():
    setting = replace(SETTING, shift_every=10, tokens=2_000, steadiness=1_000.0, skew=2.0)
    before, after = shares(setting, range(10)), shares(setting, range(10, 20))
    assert before.argmax() != after.argmax()
    routing = DrawnRouting(setting, 1)
    leads = []
    for number in (0, 15):
        batch = routing.batch(number).reshape(-1, 3)
        popular = np.bincount(batch[:, 0]).argmax()
        leads.append((popular, np.bincount(batch[batch[:, 0] == popular, 1]).argmax()))
    again = [routing.batch(number).reshape(-1, 3) for number in (15, 0)]
    for batch, (popular, lead) in zip(again, leads, strict=True):
        follows = batch[batch[:, 0] == popular, 1] == lead
        assert follows.size == 0 or follows.mean() > 0.3


def test_ranks_serve_every_scheme_in_turn(tmp_path: Path):
    schemes = ("balanced", "lina", "one_per_device")
    results = run_ranks(
        serve,
        loopback(2),
        tmp_path,
        settings=[SETTING.to_json()],
        schemes=schemes,
        profiled=2,
        timed=4,
        seed=1,
    )
    (served,) = results[0]["settings"]
    assert {scheme: len(rows) for scheme, rows in served.items()} == dict.fromkeys(schemes, 4)
    for rows in served.values():
        assert all(row["batch_s"] > 0 and len(row["layers"]) == SETTING.layers for row in rows)
