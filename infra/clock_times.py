"""Times as people read them."""

from datetime import UTC, datetime


def written(time: str | float) -> str:
    """A Unix time, or what a sender wrote, as ISO 8601 in UTC; what is no time stays as it was written."""
    try:
        moment = datetime.fromtimestamp(time, UTC) if isinstance(time, float | int) else _read(time)
    except (ValueError, OverflowError):
        return str(time)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(time: str) -> datetime:
    moment = datetime.fromisoformat(time)
    # Without a zone it is meant in UTC, as all times here.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
