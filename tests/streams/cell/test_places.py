"""Recorded faults name parts of policies by closed words."""

import inspect

from streams.cell.places import PLACE_OF_METHOD
from streams.policies.policy import ZonePolicy


def test_all_methods_of_policies_have_places() -> None:
    methods = {name for name, _ in inspect.getmembers(ZonePolicy, callable) if not name.startswith("_")}
    assert methods
    assert methods <= PLACE_OF_METHOD.keys()
