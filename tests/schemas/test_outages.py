"""Log lines of a service while Kafka is lost, and when it is back."""

import logging
from collections.abc import Iterator

import pytest

from schemas.outages import QUIET_S, OutageFilter


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def filtered(clock: Clock) -> OutageFilter:
    return OutageFilter(clock)


@pytest.fixture
def lines(filtered: OutageFilter) -> Iterator[list[str]]:
    """Records that pass the filter, of any logger."""
    handler = Lines()
    handler.addFilter(filtered)
    root = logging.getLogger()
    root.addHandler(handler)
    yield handler.texts
    root.removeHandler(handler)


def librdkafka_fails(facility: str = "FAIL", level: int = logging.ERROR) -> None:
    logging.getLogger("streams.solver.service").log(
        level, "%s [%s] %s", facility, "solver#consumer-1", "Connect to ipv4#127.0.0.1:1 failed: refused"
    )


def aiokafka_fails() -> None:
    logging.getLogger("aiokafka").error("Unable connect to node with id %s: %s", 1, "refused")
    logging.getLogger("aiokafka.consumer.group_coordinator").warning("Heartbeat failed for group %s", "g")


def test_outage_is_two_lines(filtered: OutageFilter, clock: Clock, lines: list[str]) -> None:
    for _ in range(500):
        librdkafka_fails()
        aiokafka_fails()
        clock.now_s += 0.05
    assert len(lines) == 1
    assert lines[0].startswith("Kafka is lost, further lines about it are left out: FAIL [solver#consumer-1]")

    assert not filtered.conclude()
    clock.now_s += QUIET_S
    assert filtered.conclude()

    assert lines[1:] == [
        f"Kafka is back: no failure for {QUIET_S:.0f} s; from the first to the last were 25 s, "
        "1499 lines left out"
    ]


@pytest.mark.parametrize("pause_s", [10.04, 30.0, 61.0], ids=["api_version", "identical_error", "request"])
def test_stopped_broker_is_one_outage(
    filtered: OutageFilter, clock: Clock, lines: list[str], pause_s: float
) -> None:
    for _ in range(4):
        librdkafka_fails()
        for _ in range(int(pause_s)):
            clock.now_s += pause_s / int(pause_s)
            assert not filtered.conclude()
    assert len(lines) == 1
    clock.now_s += QUIET_S
    assert filtered.conclude()
    assert len(lines) == 2
    assert f"from the first to the last were {3 * pause_s:.0f} s" in lines[1]


@pytest.mark.usefixtures("filtered")
def test_failed_requests_are_lines_of_an_outage_too(lines: list[str]) -> None:
    librdkafka_fails("REQTMOUT", logging.WARNING)
    librdkafka_fails("GETPID", logging.WARNING)
    fetcher = logging.getLogger("aiokafka.consumer.fetcher")
    fetcher.error("Failed fetch offsets from %s: %s", 1, "[Error 6] NotLeaderForPartitionError")
    fetcher.warning("Failed to reset: %s", "[Error 6] NotLeaderForPartitionError")
    assert len(lines) == 1
    assert lines[0].startswith("Kafka is lost, further lines about it are left out: REQTMOUT")


def test_the_next_outage_is_announced_again(filtered: OutageFilter, clock: Clock, lines: list[str]) -> None:
    for _ in range(2):
        aiokafka_fails()
        clock.now_s += QUIET_S
        assert filtered.conclude()
    assert [line.partition(",")[0].partition(":")[0] for line in lines] == [
        "Kafka is lost",
        "Kafka is back",
        "Kafka is lost",
        "Kafka is back",
    ]


@pytest.mark.usefixtures("filtered")
def test_other_lines_pass_during_outage(lines: list[str]) -> None:
    librdkafka_fails()
    logging.getLogger("executors.node").warning("disk is full")
    logging.getLogger("aiokafka").error("Topic %s is not available", "t")
    assert lines[1:] == ["disk is full", "Topic t is not available"]


def test_a_connection_that_was_idle_is_no_outage(filtered: OutageFilter, lines: list[str]) -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    librdkafka_fails(level=logging.INFO)
    root.setLevel(before)
    assert len(lines) == 1
    assert not lines[0].startswith("Kafka is lost")
    assert filtered.conclude()
