"""The same bytes are decided interpreted, compiled, and by a process that changes over in the middle."""

import pytest

from tests.streams.golden.ledger import CHAIN
from tests.support.interpreted import decided


@pytest.fixture(scope="module")
def compiled():
    return decided("compiled")


@pytest.mark.parametrize("mode", ["interpreted", "changing"])
def test_machine_code_decides_as_the_interpreter_does(compiled, mode):
    assert compiled["golden"] == CHAIN.read_text().strip()
    assert decided(mode) == compiled
