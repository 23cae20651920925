"""The batches that placements are timed with are what they claim to be, and are timed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench.figures import Conditions
from bench.moe import placement
from bench.moe.placement import changed, drawn_cases


@pytest.fixture
def conditions(tmp_path: Path) -> Conditions:
    return Conditions(True, 0, tmp_path, 1, Console(quiet=True))


def test_batches_have_all_tokens_whatever_the_form():
    cases = list(drawn_cases(np.random.default_rng(1), 16, 4_096, 3))
    assert len({case.name for case in cases}) * 3 == len(cases)
    assert all(case.actual.sum() == case.estimated.sum() == 4_096 for case in cases)
    assert all(case.actual.min() >= 0 for case in cases)
    largest = {case.name: case.actual.max() / 4_096 for case in cases}
    assert largest["one alone"] == 1.0
    assert largest["even"] < 0.1 < largest["zipf 1"] < largest["zipf 2"]


def test_the_search_moves_tokens_and_loses_none():
    draws = np.random.default_rng(2)
    case = next(drawn_cases(draws, 8, 100, 1))
    changes = 0
    for _ in range(50):
        other = changed(case, draws)
        assert other.actual.sum() == 100
        assert other.actual.min() >= 0
        changes += (other.actual != case.actual).any() or (other.estimated != case.estimated).any()
        case = other
    assert changes > 40


def test_batches_are_timed_in_both_phases(conditions: Conditions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(placement, "EXPERTS", 8)
    monkeypatch.setattr(placement, "DEVICES", 4)
    result = placement.measure_placement(replace(conditions, seed=3))
    (figure,) = result.measurements
    (table,) = result.tables
    assert figure.value > 0
    assert figure.runs == len(table.rows) == 40
    assert all(row["phase_one_ms"] > 0 and row["phase_two_ms"] > 0 for row in table.rows)
