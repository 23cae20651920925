"""Fixtures that the cases share."""

import pytest

from tests.support.cells import CheckedBench


@pytest.fixture
def bench() -> CheckedBench:
    return CheckedBench.configured()
