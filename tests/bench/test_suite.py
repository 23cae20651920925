"""Every suite is declared, and each of its parts can be measured."""

import inspect

import pytest

from bench.suite import SUITES


@pytest.mark.parametrize("name", list(SUITES))
def test_parts_have_titles_of_their_own(name):
    titles = [part.title for part in SUITES[name].suite().parts]
    assert titles
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", list(SUITES))
def test_named_part_has_its_function(name):
    from pkgutil import resolve_name

    for part in SUITES[name].suite().parts:
        variables = inspect.getclosurevars(part.measure).nonlocals
        function = variables.get("name", "")
        if ":" in function:
            assert callable(resolve_name(function)), part.title
