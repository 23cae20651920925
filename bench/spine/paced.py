"""Latency at a fixed rate, of whatever sends events and answers them."""

import time
from collections.abc import Callable, Mapping

_PER_S = 100
_PATIENCE_S = 30.0


def paced_latencies_ms(
    send: Callable[[], str], poll: Callable[[float], Mapping[str, float]], events: int
) -> list[float]:
    """Send 100 events per second and time each until its answer is read.

    Args:
        send: sends an event and returns its id.
        poll: waits for at most so many seconds and returns the arrival (monotonic seconds) of answers, by id.

    Raises:
        TimeoutError: an answer does not come.
    """
    sent: dict[str, float] = {}
    arrived: dict[str, float] = {}
    began_s = time.monotonic()
    for number in range(events):
        due_s = began_s + number / _PER_S
        while (wait_s := due_s - time.monotonic()) > 0:
            arrived.update(poll(wait_s))
        now_s = time.monotonic()
        sent[send()] = now_s
    last_s = time.monotonic()
    while not arrived.keys() >= sent.keys():
        if found := poll(0.05):
            arrived.update(found)
            last_s = time.monotonic()
        elif time.monotonic() - last_s > _PATIENCE_S:
            missing = len(sent.keys() - arrived.keys())
            raise TimeoutError(f"{missing} of {events} answers did not come within {_PATIENCE_S:g} s")
    return [(arrived[id] - at_s) * 1_000 for id, at_s in sent.items()]
