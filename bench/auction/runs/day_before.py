"""The day before: a day of the same setting that a contender may learn from, and is not judged by."""

_APART = 1_000_000
"""Far beyond the seeds of days that are judged."""


def day_before(seed: int) -> int:
    """The seed of the day before that of `seed`."""
    return _APART + seed
