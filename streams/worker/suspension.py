"""Suspension of the process, after which another worker may have its cells."""

import asyncio
from collections.abc import Callable


class SuspendedError(Exception):
    """The process was suspended for so long that another worker may own its cells."""


class Suspension:
    """Notes regularly that the process runs."""

    def __init__(self, limit_s: float, monotonic_s: Callable[[], float]) -> None:
        """`limit_s` is the longest suspension after which the worker still owns its cells."""
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
        """Return if the process was not suspended for long.

        Raises:
            SuspendedError: it was.
        """
        silent_s = self._monotonic_s() - self._alive_at_s
        if silent_s > self._limit_s:
            raise SuspendedError(
                f"the process stood still for {silent_s:.1f} s, and another worker may have its cells: "
                "start it again"
            )
