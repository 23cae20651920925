"""Number of examples that the property tests draw."""

import os
from typing import Any

import pytest

LONG = os.environ.get("MILLRACE_TESTS") == "long"
"""All that was decided on: `make test-long`."""


def examples(full: int) -> int:
    """A fortieth of the full number in `make test`, but 10 at least and 100 at most."""
    return full if LONG else min(full, max(full // 40, 10), 100)


def seeds(full: int) -> range:
    """A quarter of the full number in `make test`, but one at least."""
    return range(full if LONG else max(full // 4, 1))


def long(*cases: Any) -> list[Any]:
    """Cases of one parameter that `make test` leaves out."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]
