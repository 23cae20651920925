"""Number of examples that the property tests draw."""

import os
from typing import Any

import pytest

LONG = os.environ.get("MILLRACE_TESTS") == "long"
"""Whether to draw the full number of examples: `make test-long`."""


def examples(full: int) -> int:
    """A sixtieth of the full number in `make test`, but 8 at least and 50 at most."""
    return full if LONG else min(full, max(full // 60, 8), 50)


def seeds(full: int) -> range:
    """An eighth of the full number in `make test`, but one at least."""
    return range(full if LONG else max(full // 8, 1))


def long(*cases: Any) -> list[Any]:
    """Cases of one parameter that `make test` leaves out."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]
