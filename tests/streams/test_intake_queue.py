"""The order in which events enter the ledger: by time, and fair between writers."""

from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st

from streams.kafka.records import Partition, ReadRecord
from streams.worker.intake_queue import LONGEST_WAIT_S, IntakeQueue, RecordTimes, Waiting

INTERVAL_S = 1 / 128
JOBS = Partition("jobs", 0)
NOW_S = 0.0
"""Long before anything is overdue."""


def event(
    writer: str, time_s: float, cell: str = "c", tick: bool = False, report: bool = False, name: str = ""
) -> Waiting:
    record = ReadRecord("jobs", 0, 0, None, b"c", name.encode())
    return Waiting(cell, writer, time_s, time_s, record, is_tick=tick, is_report=report)


def order(events: Iterable[Waiting], may_tick: Callable[[Waiting], bool] = lambda _: True) -> list[Waiting]:
    """Put events in this order, and return those that the queue gives until it gives no more."""
    queue = IntakeQueue(INTERVAL_S)
    for one in events:
        queue.put(one)
    return list(iter(lambda: queue.pop(NOW_S, may_tick), None))


def test_events_of_topics_enter_by_time():
    ticks = [event("clock", float(second), tick=True) for second in range(5)]
    reports = [event("fleet/n1", second + 0.5, report=True) for second in range(5)]
    bids = [event("jobs/ada", second + 0.7) for second in range(5)]
    taken = order([*ticks, *bids, *reports])
    assert [one.time_s for one in taken] == sorted(one.time_s for one in [*ticks, *bids, *reports])


def test_flood_of_user_delays_by_its_share():
    flood = [event("jobs/flooder", 0.0) for _ in range(30_000)]
    honest = event("jobs/ada", 1.0)
    taken = order([*flood, honest])
    # In a second a writer's events have at most 128 places.
    assert taken.index(honest) == 128
    assert len(taken) == 30_001


def test_a_flood_does_not_hold_the_clock():
    flood = [event("jobs/flooder", 0.0) for _ in range(1_000)]
    ticks = [event("clock", float(second), tick=True) for second in range(1, 6)]
    taken = order([*flood, *ticks])
    assert [taken.index(tick) for tick in ticks] == [128, 257, 386, 515, 644]


def test_flood_of_topic_delays_no_other():
    flood = [event("quotes/vendor", 0.0) for _ in range(1_000)]
    report = event("fleet/n1", 0.05, report=True)
    assert order([*flood, report]).index(report) == 7


def test_two_who_flood_take_turns():
    floods = [event(writer, 0.0) for writer in ("jobs/a", "jobs/b") for _ in range(50)]
    taken = order(floods)
    assert [one.writer for one in taken[:10]] == ["jobs/a", "jobs/b"] * 5


def test_cells_take_turns():
    floods = [event("jobs/a", 0.0, cell) for cell in ("one", "two") for _ in range(100)]
    assert [one.cell for one in order(floods)[:6]] == ["one", "two"] * 3


def test_waiting_tick_delays_all_but_reports():
    tick = event("clock", 1.0, tick=True)
    before, behind = event("jobs/ada", 0.5), event("jobs/ada", 1.5)
    report = event("fleet/n1", 2.0, report=True)
    other = event("jobs/ada", 3.0, cell="other")
    assert order([tick, before, behind, report, other], may_tick=lambda _: False) == [before, other, report]


def test_full_cell_delays_no_other():
    queue = IntakeQueue(INTERVAL_S)
    for cell in ("full", "free"):
        queue.put(event("jobs/ada", 0.0, cell))
    taken = [queue.pop(NOW_S, lambda _: True, lambda cell: cell == "free") for _ in range(2)]
    assert [one and one.cell for one in taken] == ["free", None]


def test_an_empty_queue_remembers_nothing_of_a_flood():
    queue = IntakeQueue(INTERVAL_S)
    for _ in range(1_000):
        queue.put(event("jobs/flooder", 0.0))
    while queue.pop(NOW_S, lambda _: True):
        pass
    assert queue.size_bytes == 0
    late, other = event("jobs/flooder", 1.0), event("jobs/ada", 1.001)
    queue.put(other)
    queue.put(late)
    assert [queue.pop(NOW_S, lambda _: True), queue.pop(NOW_S, lambda _: True)] == [late, other]


def waits_s(decided_in_s: float, until_s: float = 60.0) -> list[float]:
    """Return the waits of an honest bid each second, in a queue that one worker serves and in which another
    user always has bids waiting. `decided_in_s`: time that a bid of that user takes; an honest one takes 1
    ms."""
    queue = IntakeQueue(INTERVAL_S)
    flood = [event("jobs/slow", 0.0) for _ in range(int(until_s / decided_in_s))]
    honest = [event("jobs/ada", float(second)) for second in range(1, int(until_s))]
    for one in flood:
        queue.put(one)
    now_s, waits, unread = 0.0, [], honest
    while unread or queue.size_bytes:
        while unread and unread[0].time_s <= now_s:
            queue.put(unread.pop(0))
        taken = queue.pop(NOW_S, lambda _: True)
        if taken is None:
            now_s = unread[0].time_s
            continue
        is_honest = taken.writer == "jobs/ada"
        now_s += 0.001 if is_honest else decided_in_s
        queue.charge(taken, 0.001 if is_honest else decided_in_s)
        if is_honest:
            waits.append(now_s - taken.time_s)
    return waits


def test_slow_events_delay_their_writer():
    assert max(waits_s(0.05)) < 0.3
    assert max(waits_s(0.5)) < 1.5


def test_many_names_delay_neither_clock_nor_nodes():
    queue = IntakeQueue(INTERVAL_S)
    for number in range(30_000):
        queue.put(event(f"jobs/name{number}", 0.0))
    unread = [event("clock", float(second), tick=True) for second in range(1, 20)]
    unread += [event("fleet/n1", second + 0.5, report=True) for second in range(1, 20)]
    unread.sort(key=lambda one: one.time_s)
    now_s, waits = 0.0, []
    while unread:
        while unread and unread[0].time_s <= now_s:
            queue.put(unread.pop(0))
        taken = queue.pop(now_s, lambda _: True)
        assert taken is not None
        now_s += 0.001
        if taken.is_tick or taken.is_report:
            waits.append(now_s - taken.time_s)
    assert max(waits) < LONGEST_WAIT_S + 0.01


def test_overdue_events_keep_order_under_node_flood():
    tick, report = event("clock", 1.0, tick=True), event("fleet/n1", 1.5, report=True)
    flood = [event("fleet/flooder", 0.5, report=True) for _ in range(1_000)]
    bids = [event(f"jobs/name{number}", 0.6) for number in range(500)]
    queue = IntakeQueue(INTERVAL_S)
    for one in [*flood, *bids, report, tick]:
        queue.put(one)
    late_s = 10.0
    taken = list(iter(lambda: queue.pop(late_s, lambda _: True), None))
    assert taken.index(tick) < taken.index(report) < taken.index(bids[0])
    assert sum(one in flood for one in taken[: taken.index(bids[-1])]) < 250


def test_ticks_are_not_charged_for():
    queue = IntakeQueue(INTERVAL_S)
    ticks = [event("clock", float(second), tick=True) for second in range(3)]
    bid = event("jobs/ada", 1.5)
    for one in [*ticks, bid]:
        queue.put(one)
    taken = []
    while (one := queue.pop(NOW_S, lambda _: True)) is not None:
        taken.append(one)
        queue.charge(one, 5.0)
    assert taken == [*ticks[:2], bid, ticks[2]]


def test_what_is_cleared_is_gone():
    queue = IntakeQueue(INTERVAL_S)
    queue.put(event("jobs/ada", 0.0))
    queue.clear()
    assert (queue.pop(NOW_S, lambda _: True), queue.size_bytes) == (None, 0)


WRITERS = ("jobs/a", "jobs/b", "fleet/n", "clock")


@given(
    st.lists(
        st.tuples(st.sampled_from(WRITERS), st.floats(0.0, 5.0), st.booleans(), st.sampled_from("xy")),
        max_size=80,
    )
)
def test_each_event_leaves_once_in_writers_order(
    drawn: list[tuple[str, float, bool, str]],
) -> None:
    queue = IntakeQueue(INTERVAL_S)
    put: list[Waiting] = []
    taken: list[Waiting] = []
    for number, (writer, time_s, take, cell) in enumerate(drawn):
        one = event(writer, time_s, cell, writer == "clock", writer.startswith("fleet"), str(number))
        queue.put(one)
        put.append(one)
        if take and (next_one := queue.pop(NOW_S, lambda _: True)) is not None:
            taken.append(next_one)
    taken += iter(lambda: queue.pop(NOW_S, lambda _: True), None)
    assert sorted(put, key=id) == sorted(taken, key=id)
    assert queue.size_bytes == 0
    for cell in "xy":
        for writer in WRITERS:
            mine = [one for one in put if (one.cell, one.writer) == (cell, writer)]
            assert [one for one in taken if (one.cell, one.writer) == (cell, writer)] == mine


def test_record_time_is_bounded_by_now_and_partition():
    times = RecordTimes()
    assert times.of(JOBS, 100_000, now_s=130.0) == 100.0
    assert times.of(JOBS, 0, now_s=130.0) == 99.0
    assert times.of(JOBS, 0, now_s=130.0) == 99.0, "what is behind does not move the latest"
    assert times.of(JOBS, 10**15, now_s=130.0) == 130.0
    assert times.of(JOBS, None, now_s=131.0) == 131.0
    assert times.of(JOBS, 100_000, now_s=131.0) == 130.0
    assert times.of(Partition("jobs", 1), 0, now_s=131.0) == 0.0, "another partition"
    times.forget()
    assert times.of(JOBS, 0, now_s=131.0) == 0.0
