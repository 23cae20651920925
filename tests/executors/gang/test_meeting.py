"""Processes of a generation meet, or fail to."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from executors.gang.folder import JobFolder
from executors.gang.meeting import Assembly, Meeting, PeerFailedError
from executors.gang.messages import Membership
from executors.tuner.faults import HaltedError
from executors.tuner.task_rank import come_together

_HOST = "127.0.0.1"


def membership(rank: int, world: int = 2) -> Membership:
    return Membership(generation=1, rank=rank, world=world)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "j")


@pytest.fixture
def pair(folder: JobFolder) -> tuple[Meeting, Meeting]:
    leader = Meeting.attend(folder, membership(0), _HOST)
    follower = Meeting.attend(folder, membership(1), _HOST)
    assert leader is not None
    assert follower is not None
    return leader, follower


def test_all_form_the_group_once_all_have_entered(pair: tuple[Meeting, Meeting]) -> None:
    leader, follower = pair
    leader.enter()
    assert not leader.all_entered
    follower.enter()
    assert follower.all_entered
    assert leader.all_entered


def test_left_group_is_not_formed(pair: tuple[Meeting, Meeting]) -> None:
    leader, follower = pair
    follower.enter()
    assert follower.leave()
    leader.enter()
    assert not leader.all_entered
    assert leader.leave()


def test_leaving_before_completion_is_seen_is_in_time(
    pair: tuple[Meeting, Meeting],
) -> None:
    leader, follower = pair
    leader.enter()
    follower.enter()
    assert follower.leave()
    assert not leader.all_entered


def test_late_leaver_must_form_group(pair: tuple[Meeting, Meeting]) -> None:
    leader, follower = pair
    follower.enter()
    leader.enter()
    assert leader.all_entered
    assert not follower.leave()
    assert follower.all_entered


def test_one_that_has_not_entered_may_always_leave(pair: tuple[Meeting, Meeting]) -> None:
    leader, follower = pair
    leader.enter()
    assert follower.leave()


def halted_after(happens: Callable[[], None]) -> Callable[[], bool]:
    """A part that is halted at the second look, after something has happened."""
    looks = count(1)

    def is_halted() -> bool:
        if next(looks) == 1:
            return False
        happens()
        return True

    return is_halted


def test_halted_rank_joins_if_awaited(folder: JobFolder) -> None:
    leader = Meeting.attend(folder, membership(0), _HOST)
    assert leader is not None

    def leader_sees_all() -> None:
        leader.enter()
        assert leader.all_entered

    meeting = come_together(folder, membership(1), _HOST, 5.0, halted_after(leader_sees_all))
    assert meeting is not None
    assert meeting.all_entered


def test_rank_halted_before_others_does_not_join(folder: JobFolder) -> None:
    leader = Meeting.attend(folder, membership(0), _HOST)
    assert leader is not None
    with pytest.raises(HaltedError):
        come_together(folder, membership(1), _HOST, 5.0, halted_after(lambda: None))
    leader.enter()
    assert not leader.all_entered


def test_rank_halted_with_rank_0_does_not_join(folder: JobFolder) -> None:
    leader = [Meeting.attend(folder, membership(0), _HOST)]
    with pytest.raises(HaltedError):
        come_together(folder, membership(1), _HOST, 5.0, halted_after(leader.clear))


def test_rank_finds_meeting_of_new_rank_0(folder: JobFolder) -> None:
    lost = Meeting.attend(folder, membership(0), _HOST)
    follower = Assembly(folder, _HOST, reopens=True)
    assert follower.attend(membership(1)) is not None
    del lost
    leader = Meeting.attend(folder, membership(0), _HOST)
    assert leader is not None
    leader.enter()
    meeting = follower.come_together(membership(1), 5.0, is_needed=lambda: True)
    assert meeting is not None
    assert leader.all_entered


def test_a_note_of_another_rank_ends_the_wait(folder: JobFolder) -> None:
    folder.write_failure(1, "bad data", permanent=True)
    with pytest.raises(PeerFailedError, match="bad data") as raised:
        Assembly(folder, _HOST).come_together(membership(1), 5.0, is_needed=lambda: True)
    assert raised.value.is_permanent


def test_rank_waits_only_for_its_timeout(folder: JobFolder) -> None:
    with pytest.raises(PeerFailedError, match=r"not all 2 ranks of generation 1 have joined in 0\.02 s"):
        Assembly(folder, _HOST).come_together(membership(1), 0.02, is_needed=lambda: True)
