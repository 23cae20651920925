"""The parts of the benchmark, and the figures that they are to bring."""

from pathlib import Path

import pytest
from rich.console import Console

from bench.figures import Conditions, Measurement, Result
from bench.goals import goals
from bench.moe import contention, parts
from bench.moe.parts import SUITE
from bench.network.links import NoLinksError


def test_every_figure_names_a_part_that_there_is():
    assert {aim.part for aim in goals("moe").values()} == {part.title for part in SUITE.parts}


def test_goals_lie_in_expected_ranges():
    for name, aim in goals("moe").items():
        assert aim.full.expected is not None, name
        low, high = aim.full.expected
        aims = [bound for bound in (aim.at_most, aim.at_least, aim.above) if bound is not None]
        assert all(low <= bound <= high for bound in aims), name


def test_loopback_network_figures_have_no_goal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(world: int, megabits_per_s: float) -> None:
        raise NoLinksError(f"no {world} links of {megabits_per_s} Mbit/s")

    seen = Result((Measurement("contention_slowdown", 1.0, "as it was seen"),))
    monkeypatch.setattr(parts, "rate_limited", refuse)
    parts.has_links.cache_clear()
    monkeypatch.setattr(contention, "measure_contention_part", lambda conditions: seen)
    conditions = Conditions(True, 0, tmp_path, 1, tmp_path, (), Console())
    by_title = {part.title: part for part in SUITE.due(conditions)}
    parts.has_links.cache_clear()
    assert "contention" not in by_title
    (figure,) = by_title["contention, loopback"].measure(SUITE.bench(conditions)).measurements
    assert figure.name == "contention_slowdown_loopback"
    assert not goals("moe")[figure.name].binds(quick=False)
