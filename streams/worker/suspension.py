"""Detection of a suspension of the process, after which another worker may own its cells."""

import asyncio
from collections.abc import Callable


class SuspendedError(Exception):
    """The process was suspended for so long that another worker may own its cells."""


class Suspension:
    """Detects a suspension by a timestamp that is renewed regularly."""

    def __init__(self, limit_s: float, monotonic_s: Callable[[], float]) -> None:
        """Begin to watch. `limit_s` is the longest suspension after which the worker still owns its cells."""
        self._limit_s = limit_s
        self._monotonic_s = monotonic_s
        self._alive_at_s = monotonic_s()

    async def watch(self, every_s: float) -> None:
        """Note that the process runs. Never returns.

        Raises:
            SuspendedError: see `refuse`.
        """
        while True:
            await asyncio.sleep(every_s)
            self.refuse()
            self._alive_at_s = self._monotonic_s()

    def refuse(self) -> None:
        """Check that the process was not suspended beyond the limit.

        Raises:
            SuspendedError: it was.
        """
        silent_s = self._monotonic_s() - self._alive_at_s
        if silent_s > self._limit_s:
            raise SuspendedError(
                f"the process was suspended for {silent_s:.1f} s, and another worker may own its cells: "
                "start it again"
            )
