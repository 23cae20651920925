"""The parts of the benchmark, and the figures that they are to bring."""

from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from bench.figures import Conditions, Measurement, Result
from bench.goals import goals
from bench.moe import contention, parts
from bench.moe.parts import CUDA_PARTS, LOOPBACK, NETWORK_PARTS, PARTS, moe_parts
from bench.network.links import NoLinksError

ALL_PARTS = NETWORK_PARTS + PARTS + CUDA_PARTS


def test_every_figure_names_a_part_that_there_is():
    on_loopback = {f"{title}, {LOOPBACK}" for title, _, _ in NETWORK_PARTS}
    assert {aim.part for aim in goals("moe").values()} == {title for title, _, _ in ALL_PARTS} | on_loopback


@pytest.mark.parametrize(("module", "function"), [part[1:] for part in ALL_PARTS])
def test_every_part_has_a_function_that_measures(module, function):
    assert callable(getattr(import_module(f"bench.moe.{module}"), function))


def test_every_goal_lies_where_its_figure_is_expected_to_be():
    for name, aim in goals("moe").items():
        assert aim.full.expected is not None, name
        low, high = aim.full.expected
        aims = [bound for bound in (aim.at_most, aim.at_least, aim.above) if bound is not None]
        assert all(low <= bound <= high for bound in aims), name


def test_without_rate_limited_links_figures_of_the_network_are_others_that_have_no_goal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(world: int, megabits_per_s: float) -> None:
        raise NoLinksError(f"no {world} links of {megabits_per_s} Mbit/s")

    seen = Result((Measurement("contention_slowdown", 1.0, "as it was seen"),))
    monkeypatch.setattr(parts, "rate_limited", refuse)
    monkeypatch.setattr(contention, "measure_contention_part", lambda conditions: seen)
    by_title = dict(moe_parts(Conditions(True, 0, tmp_path, 1, tmp_path, (), Console())))
    assert "contention" not in by_title
    (figure,) = by_title["contention, loopback"]().measurements
    assert figure.name == "contention_slowdown_loopback"
    assert not goals("moe")[figure.name].binds(quick=False)
