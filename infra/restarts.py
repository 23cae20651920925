"""How often something that dies is started again."""

import time
from collections import deque

MOST_RESTARTS = 5
RESTART_WINDOW_S = 60.0


class Restarts:
    """Allows restarts as long as there were not too many of late."""

    def __init__(self) -> None:
        """None yet."""
        self._recent: deque[float] = deque(maxlen=MOST_RESTARTS)

    def take(self) -> bool:
        """Allow one more, or say that it would be too many."""
        now_s = time.monotonic()
        if len(self._recent) == MOST_RESTARTS and now_s - self._recent[0] < RESTART_WINDOW_S:
            return False
        self._recent.append(now_s)
        return True
