"""Money, changes, times, durations and lists of names as readable text."""

from collections.abc import Sequence
from datetime import UTC, datetime

MICROS_PER_UNIT = 1_000_000
_LEAST_DECIMALS = 4
_YEAR_10000_S = 253_402_300_800
"""Time from which on ISO 8601 needs more than four digits for the year."""


def units(micros: float | None) -> str:
    """Format an amount in units of money; None is a dash.

    A whole number of micros is printed exactly, with four to six decimals, because a bid may win or lose by
    the last of them. A mean, which is a float, is rounded to four.
    """
    if micros is None:
        return "–"
    if isinstance(micros, float):
        return f"{micros / MICROS_PER_UNIT:,.{_LEAST_DECIMALS}f}"
    whole, rest = divmod(abs(micros), MICROS_PER_UNIT)
    decimals = f"{rest:06}"
    more = decimals[_LEAST_DECIMALS:].rstrip("0")
    return f"{'-' if micros < 0 else ''}{whole:,}.{decimals[:_LEAST_DECIMALS]}{more}"


def signed_percent(part: float) -> str:
    """Format a relative change with its sign; a change that rounds to zero has none."""
    shown = f"{part:+.1%}"
    return "0.0%" if shown in ("+0.0%", "-0.0%") else shown


def written(time: str | float) -> str:
    """Format a Unix time, or a sender's text, as ISO 8601 in UTC; other texts are returned unchanged."""
    if isinstance(time, float | int) and time >= _YEAR_10000_S:
        return "after the year 9999"
    try:
        moment = datetime.fromtimestamp(time, UTC) if isinstance(time, float | int) else _read(time)
    except (ValueError, OverflowError):
        return str(time)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_s_of(written: str) -> float | None:
    """Return the Unix time of a sender's ISO 8601 text; None if it is not a time."""
    try:
        return _read(written).timestamp()
    except (ValueError, OverflowError):
        return None


def lasting(duration_s: float) -> str:
    """Format a duration in the largest unit that leaves at least two of it."""
    if duration_s < 2 * 60:
        return f"{duration_s:.0f} s"
    if duration_s < 2 * 3_600:
        return f"{duration_s / 60:.0f} min"
    if duration_s < 2 * 86_400:
        return f"{duration_s / 3_600:.1f} h"
    return f"{duration_s / 86_400:.1f} days"


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, whose plural takes an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def first_of(names: Sequence[str], most: int, total: int = 0) -> str:
    """Return the first few names, and the number of further ones.

    Args:
        names: All names, or the first of them.
        most: Most names to show.
        total: Number of all names, if `names` has only the first of them.
    """
    shown, more = ", ".join(names[:most]), max(total, len(names)) - most
    return f"{shown} and {more} more" if more > 0 else shown


def _read(time: str) -> datetime:
    moment = datetime.fromisoformat(time)
    # A time without a zone is in UTC, as all times here.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
