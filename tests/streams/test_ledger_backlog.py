"""The ledger is kept short: no more is sent than is folded soon."""

from streams.ledger_backlog import LedgerBacklog


def filled(backlog: LedgerBacklog) -> int:
    """How many events more it has room for, all of which are sent."""
    count = 0
    while backlog.has_room():
        backlog.sent()
        count += 1
    return count


def test_room_comes_back_as_events_are_folded():
    backlog = LedgerBacklog()
    room = filled(backlog)
    for offset in range(room):
        backlog.confirmed(0, offset)
    assert not backlog.has_room(), "confirmed is not folded"
    backlog.folded(0, 9, fold_s=0.001)
    assert filled(backlog) == 10


def test_an_event_that_is_folded_before_its_confirmation_is_seen_counts_once():
    backlog = LedgerBacklog()
    room = filled(backlog)
    backlog.folded(0, 4, fold_s=0.001)
    for offset in range(5):
        backlog.confirmed(0, offset)
    assert filled(backlog) == 5
    assert room >= 5


def test_events_that_take_long_leave_room_for_few():
    backlog = LedgerBacklog()
    quick = filled(backlog)
    for offset in range(quick):
        backlog.confirmed(0, offset)
        backlog.folded(0, offset, fold_s=0.1)
    assert 0 < filled(backlog) < quick / 10


def test_a_new_assignment_waits_for_nothing_of_the_old_one_but_confirmations():
    backlog = LedgerBacklog()
    room = filled(backlog)
    for offset in range(room - 3):
        backlog.confirmed(0, offset)
    backlog.forget()
    assert filled(backlog) == room - 3
