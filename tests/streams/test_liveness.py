"""A node counts as silent because it was silent, not because its reader was late."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from streams.worker.node_watch import GRACE_S, LONGEST_STEP_S, LivenessMonitor

TIMEOUT_S = 10.0
STEP_S = 0.25


class Listener:
    """A monitor of partition 0 and of the nodes of cell "c", on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.monitor = LivenessMonitor(self.now_s)

    def listen(self, for_s: float, reporting: tuple[str, ...] = ()) -> None:
        """Observe without a pause, with presence reports of these nodes all the while."""
        for _ in range(round(for_s / STEP_S)):
            self.now_s += STEP_S
            self.monitor.listen(0, self.now_s)
            for node in reporting:
                self.monitor.note_sign(0, "c", node, self.now_s)

    def pause(self, for_s: float) -> None:
        self.now_s += for_s

    def silent(self, node: str) -> bool:
        return self.monitor.silence_s(0, "c", node) > TIMEOUT_S


def test_stopped_node_is_silent_after_its_timeout():
    listener = Listener()
    listener.listen(5.0, reporting=("stops", "lives"))
    listener.listen(TIMEOUT_S, reporting=("lives",))
    assert not listener.silent("stops")
    listener.listen(STEP_S, reporting=("lives",))
    assert (listener.silent("stops"), listener.silent("lives")) == (True, False)


def test_pause_of_reader_counts_for_no_node():
    listener = Listener()
    listener.listen(5.0, reporting=("n",))
    listener.pause(300.0)
    listener.listen(TIMEOUT_S)
    assert not listener.silent("n")
    listener.listen(2 * STEP_S)
    assert listener.silent("n")


def test_silent_node_is_found_despite_pauses():
    listener = Listener()
    listener.listen(5.0, reporting=("dead",))
    for _ in range(6):
        listener.listen(2.0)
        listener.pause(60.0)
    assert listener.silent("dead")


def test_unheard_node_is_silent_after_listening_timeout():
    listener = Listener()
    listener.pause(1_000.0)
    listener.listen(TIMEOUT_S)
    assert not listener.silent("unheard")
    listener.listen(2 * STEP_S)
    assert listener.silent("unheard")


def flood(listener: Listener, for_s: float, reads_for_s: float, reporting: tuple[str, ...] = ()) -> None:
    """Read records that were appended in `for_s`, one every 10 ms, without ever having read all."""
    broker_s = 9_000.0 + listener.now_s
    count = round(for_s / 0.01)
    for number in range(count):
        listener.now_s += reads_for_s / count
        listener.monitor.read(0, broker_s + number * 0.01)
        if number % 200 == 0:
            for node in reporting:
                listener.monitor.note_sign(0, "c", node, listener.now_s)


def test_silent_node_is_found_behind_endless_flood():
    listener = Listener()
    listener.listen(5.0, reporting=("dead", "lives"))
    flood(listener, TIMEOUT_S + 1.0, reads_for_s=20.0, reporting=("lives",))
    assert (listener.silent("dead"), listener.silent("lives")) == (True, False)


def test_listening_behind_flood_counts_once():
    listener = Listener()
    listener.listen(5.0, reporting=("n",))
    for _ in range(10):
        flood(listener, 1.0, reads_for_s=1.0)
        listener.monitor.listen(0, listener.now_s)
    assert 9.8 < listener.monitor.silence_s(0, "c", "n") < 10.2


def test_broker_outage_counts_for_no_node():
    listener = Listener()
    listener.listen(5.0, reporting=("n",))
    listener.monitor.read(0, 9_000.0)
    listener.monitor.read(0, 9_060.0)
    assert listener.monitor.silence_s(0, "c", "n") < 1.0


def test_records_show_reading_progress_until_end():
    listener = Listener()
    assert not listener.monitor.has_read_until(0, 9_000.0)
    listener.listen(1.0)
    listener.monitor.read(0, 9_000.0)
    listener.monitor.read(0, 8_999.0)
    assert listener.monitor.has_read_until(0, 9_000.0)
    assert not listener.monitor.has_read_until(0, 9_000.1)
    listener.listen(1.0)
    assert not listener.monitor.has_read_until(0, 9_000.0)


def test_no_node_is_silent_without_listening():
    assert not Listener().silent("n")


def test_reports_are_awaited_after_pause():
    listener = Listener()
    listener.listen(5.0, reporting=("a", "b"))
    listener.pause(30.0)
    listener.listen(STEP_S)
    settled = listener.monitor.settled
    assert not settled(0, "c", ["a", "b"], listener.now_s)
    listener.monitor.note_sign(0, "c", "a", listener.now_s)
    assert not settled(0, "c", ["a", "b"], listener.now_s)
    listener.monitor.note_sign(0, "c", "b", listener.now_s)
    assert settled(0, "c", ["a", "b"], listener.now_s)


def test_late_report_counts_from_start_of_pause():
    listener = Listener()
    listener.listen(5.0, reporting=("a",))
    listener.pause(30.0)
    listener.monitor.note_sign(0, "c", "a", listener.now_s)
    listener.listen(STEP_S)
    assert listener.monitor.settled(0, "c", ["a"], listener.now_s)


def test_reports_are_awaited_within_grace():
    listener = Listener()
    listener.listen(STEP_S)
    assert not listener.monitor.settled(0, "c", ["a"], listener.now_s)
    assert listener.monitor.settled(0, "c", [], listener.now_s)
    listener.listen(GRACE_S)
    assert listener.monitor.settled(0, "c", ["a"], listener.now_s)


def test_assignment_restarts_listening():
    listener = Listener()
    listener.listen(50.0)
    assert listener.silent("n")
    listener.monitor.forget(listener.now_s)
    assert not listener.silent("n")
    assert not listener.monitor.settled(0, "c", [], listener.now_s)


@given(
    steps=st.lists(
        st.tuples(st.floats(0.01, 30.0), st.sampled_from(["listen", "read", "away"])), max_size=60
    ),
    reports_every=st.integers(1, 5),
)
def test_regularly_reporting_node_is_never_silent(steps: list[tuple[float, str]], reports_every: int) -> None:
    """Whatever the pauses: what counts between two signs is at most the steps of listening between them."""
    monitor, now_s = LivenessMonitor(0.0), 0.0
    for number, (step_s, what) in zip(itertools.count(), steps, strict=False):
        now_s += step_s
        if what == "read":
            monitor.read(0, 9_000.0 + now_s)
        if number % reports_every == 0:
            monitor.note_sign(0, "c", "n", now_s)
        if what == "listen":
            monitor.listen(0, now_s)
        assert monitor.silence_s(0, "c", "n") <= (reports_every + 1) * LONGEST_STEP_S
