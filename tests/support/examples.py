"""How many examples the property tests draw."""

import os

LONG = os.environ.get("MILLRACE_TESTS") == "long"
"""All that was decided on: `make test-long`."""


def examples(full: int) -> int:
    """A fifth of the full number in `make test`, but 40 at least, where so many were decided on."""
    return full if LONG else min(full, max(full // 5, 40))
