"""Losses in the reports of runs."""

_MAX_LOSS = 1e9
"""Highest loss that a report can hold (`schemas.fleet.Loss`)."""


def reportable(loss: float | None) -> float | None:
    """Return a loss, or the highest that a report can hold if it is higher."""
    return None if loss is None else min(loss, _MAX_LOSS)
