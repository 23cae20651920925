"""The ledger is kept short: no more is sent than is folded soon."""

from streams.worker.intake_queue import LedgerBacklog, Waiting

HERE, ELSEWHERE = 0, 1
EVENT = Waiting("c", "jobs/ada", 0.0, 0.0)


def new_backlog(now_s: float = 0.0) -> LedgerBacklog:
    """Return the backlog of a worker that folds one partition, with a fixed clock."""
    return LedgerBacklog(lambda: now_s, lambda partition: partition == HERE)


def filled(backlog: LedgerBacklog) -> int:
    """Return the number of further events that it has room for, after sending them all."""
    count = 0
    while backlog.has_room(HERE):
        backlog.sent(HERE)
        count += 1
    return count


def test_room_comes_back_as_events_are_folded():
    backlog = new_backlog()
    room = filled(backlog)
    for offset in range(room):
        backlog.confirmed(0, offset, EVENT)
    assert not backlog.has_room(HERE), "confirmed is not folded"
    backlog.folded(0, 9, fold_s=0.001)
    assert filled(backlog) == 10


def test_fold_before_confirmation_counts_once():
    backlog = new_backlog()
    room = filled(backlog)
    backlog.folded(0, 4, fold_s=0.001)
    for offset in range(5):
        backlog.confirmed(0, offset, EVENT)
    assert filled(backlog) == 5
    assert room >= 5


def test_events_that_take_long_leave_room_for_few():
    backlog = new_backlog()
    quick = filled(backlog)
    for offset in range(quick):
        backlog.confirmed(0, offset, EVENT)
        backlog.folded(0, offset, fold_s=0.1)
    assert filled(backlog) == 8 < quick / 10


def test_shorter_limit_allows_fewer_events():
    backlog = new_backlog()
    count = 0
    while backlog.has_room(HERE, longest_s=0.02):
        backlog.sent(HERE)
        count += 1
    assert count == 20
    assert filled(backlog) == 80


def test_new_assignment_awaits_only_confirmations():
    backlog = new_backlog()
    room = filled(backlog)
    for offset in range(room - 3):
        backlog.confirmed(0, offset, EVENT)
    backlog.forget()
    assert filled(backlog) == room - 3


def test_events_for_other_worker_are_paced():
    now_s = [100.0]
    backlog = LedgerBacklog(lambda: now_s[0], lambda partition: partition == HERE)
    filled(backlog)
    sent = 0
    while now_s[0] < 110.0:
        while backlog.has_room(ELSEWHERE):
            backlog.sent(ELSEWHERE)
            sent += 1
        now_s[0] += 0.1
    assert 980 <= sent <= 1_030, "a hundred each second, however rarely it is looked"


def test_events_of_other_worker_are_not_awaited():
    backlog = new_backlog(now_s=100.0)
    room = filled(backlog)
    for offset in range(room):
        backlog.confirmed(HERE, offset, EVENT)
        backlog.folded(HERE, offset, fold_s=0.001)
    assert backlog.is_empty()
    for _ in range(room):
        backlog.sent(ELSEWHERE)
    assert backlog.is_empty(), "though the broker has confirmed none of them"
    assert filled(backlog) == room
    backlog.confirmed(ELSEWHERE, 7, EVENT)
    assert not backlog.has_room(HERE), "a confirmation of theirs is none of ours"


def test_fold_returns_earlier_confirmed_events():
    backlog = new_backlog()
    for _ in range(3):
        backlog.sent(HERE)
    backlog.confirmed(HERE, 7, EVENT)
    assert backlog.folded(HERE, 6, fold_s=0.001) is None
    assert backlog.folded(HERE, 7, fold_s=0.001) is EVENT
    assert backlog.folded(HERE, 8, fold_s=0.001) is None
    backlog.confirmed(HERE, 8, EVENT)
    assert backlog.folded(HERE, 9, fold_s=0.001) is None
