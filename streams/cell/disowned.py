"""Runs that nodes were ordered to end lately, because the cell does not have them.

A node repeats its reports of a run until the run ends, and any writer of `fleet` can report runs that were
never ordered. So the orders are limited: one per run and period, and some per node and per cell. A run that
continues nevertheless is reported again in the next period.
"""

import hashlib
from dataclasses import dataclass

from streams.cell.states import Stateful

AGAIN_S = 60.0
"""Period of the limits below, by the cell's clock."""
MOST_OF_NODE = 32
MOST = 512
_DIGEST_BYTES = 16


@dataclass(init=False)
class DisownedRuns(Stateful):
    """Runs of one cell that nodes were ordered to end."""

    _since_s: float | None
    """Start of the present period; None before the clock's first tick."""
    _runs: dict[bytes, dict[bytes, None]]
    """Digests of the runs that were disowned in the period, by digest of the node."""

    def __init__(self) -> None:
        self._since_s, self._runs = None, {}

    def note(self, node: str, run_id: str, time_s: float | None) -> bool:
        """Return whether the node is to be ordered to end the run now, and count the order."""
        if time_s is not None and (self._since_s is None or time_s - self._since_s >= AGAIN_S):
            self._since_s = time_s
            self._runs.clear()
        key, run = _digest(node), _digest(run_id)
        of_node = self._runs.get(key, {})
        if run in of_node or len(of_node) >= MOST_OF_NODE or sum(map(len, self._runs.values())) >= MOST:
            return False
        self._runs.setdefault(key, of_node)[run] = None
        return True


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
