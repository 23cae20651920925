"""The parts of the benchmark, and their figures."""

from pathlib import Path

import pytest
from rich.console import Console

from bench.figures import Conditions
from bench.goals import goals
from bench.moe import parts
from bench.moe.parts import SUITE
from bench.network import NoLinksError


def test_every_figure_names_a_part_that_there_is():
    assert {aim.part for aim in goals("moe").values()} == {part.title for part in SUITE.parts}


def test_goals_lie_in_expected_ranges():
    for name, aim in goals("moe").items():
        assert aim.full.expected is not None, name
        low, high = aim.full.expected
        aims = [bound for bound in (aim.at_most, aim.at_least, aim.above) if bound is not None]
        assert all(low <= bound <= high for bound in aims), name


def test_without_links_no_part_needs_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(world: int, megabits_per_s: float) -> None:
        raise NoLinksError(f"no {world} links of {megabits_per_s} Mbit/s")

    monkeypatch.setattr(parts, "rate_limited", refuse)
    parts.has_links.cache_clear()
    titles = {part.title for part in SUITE.due(Conditions(True, 0, tmp_path, 1, Console()))}
    parts.has_links.cache_clear()
    assert titles.isdisjoint({"contention", "training", "inference"})
    assert {"placement", "gating layer", "gating training", "estimation"} <= titles
