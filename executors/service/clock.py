"""The one source of time."""

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time."""

    def time_s(self) -> float:
        """Seconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's clock. Keep it synchronised: slots end by it."""

    def time_s(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()
