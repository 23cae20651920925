"""Latencies are of each event, from the moment that it is sent."""

import itertools
import time

import pytest

from bench.spine import faust_alone
from bench.spine.faust_alone import paced_latencies_ms


def test_event_is_timed_until_own_answer():
    ids = (f"event{number}" for number in itertools.count())
    waiting: list[str] = []

    def send() -> str:
        waiting.append(next(ids))
        return waiting[-1]

    def poll(wait_s: float) -> dict[str, float]:
        time.sleep(min(wait_s, 0.001))
        # The newest first: answers may come in any order.
        return {waiting.pop(): time.monotonic()} if waiting else {}

    latencies_ms = paced_latencies_ms(send, poll, 5)
    assert len(latencies_ms) == 5
    assert all(latency_ms >= 0 for latency_ms in latencies_ms)


def test_an_answer_that_never_comes_ends_it(monkeypatch):
    monkeypatch.setattr(faust_alone, "_TIMEOUT_S", 0.05)
    ids = itertools.count()
    with pytest.raises(TimeoutError, match="2 of 2 answers did not arrive"):
        paced_latencies_ms(lambda: str(next(ids)), lambda wait_s: time.sleep(wait_s) or {}, 2)
