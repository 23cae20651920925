"""Times as CloudEvents write them."""

from datetime import UTC, datetime
from functools import lru_cache


def rfc3339(timestamp_ms: int) -> str:
    """A Unix time in milliseconds, in UTC."""
    return f"{_second(timestamp_ms // 1_000)}.{timestamp_ms % 1_000:03d}Z"


@lru_cache(maxsize=64)
def _second(timestamp_s: int) -> str:
    return datetime.fromtimestamp(timestamp_s, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
