"""The parts of the benchmark, and the figures that they are to bring."""

from importlib import import_module

import pytest

from bench.goals import goals
from bench.moe.parts import CUDA_PARTS, PARTS


def test_every_figure_names_a_part_that_there_is():
    assert {aim.part for aim in goals("moe").values()} == {title for title, _, _ in PARTS + CUDA_PARTS}


@pytest.mark.parametrize(("module", "function"), [part[1:] for part in PARTS + CUDA_PARTS])
def test_every_part_has_a_function_that_measures(module, function):
    assert callable(getattr(import_module(f"bench.moe.{module}"), function))


def test_every_goal_lies_where_its_figure_is_expected_to_be():
    for name, aim in goals("moe").items():
        assert aim.full.expected is not None, name
        low, high = aim.full.expected
        aims = [bound for bound in (aim.at_most, aim.at_least, aim.above) if bound is not None]
        assert all(low <= bound <= high for bound in aims), name
