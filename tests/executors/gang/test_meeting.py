"""How the processes of a generation come together, or do not."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from executors.gang.folder import JobFolder
from executors.gang.meeting import Meeting
from executors.gang.membership import Membership
from executors.tuner.gathering import come_together

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


def test_nobody_forms_a_group_that_one_has_left(pair: tuple[Meeting, Meeting]) -> None:
    leader, follower = pair
    follower.enter()
    assert follower.leave()
    leader.enter()
    assert not leader.all_entered
    assert leader.leave()


def test_one_that_leaves_when_all_have_entered_and_before_it_saw_so_is_in_time_if_none_has_seen_it(
    pair: tuple[Meeting, Meeting],
) -> None:
    leader, follower = pair
    leader.enter()
    follower.enter()
    assert follower.leave()
    assert not leader.all_entered


def test_one_that_leaves_too_late_has_to_form_the_group(pair: tuple[Meeting, Meeting]) -> None:
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


class _CalledOffError(Exception):
    """A worker is told to do something else."""


def called_off_when(happens: Callable[[], None]) -> Callable[[], None]:
    """The check of a worker that looks once, and is called off after something has happened."""
    looks = count(1)

    def check() -> None:
        if next(looks) > 1:
            happens()
            raise _CalledOffError

    return check


def test_a_worker_that_is_called_off_comes_if_another_counts_on_it(folder: JobFolder) -> None:
    leader = Meeting.attend(folder, membership(0), _HOST)
    assert leader is not None

    def leader_sees_all() -> None:
        leader.enter()
        assert leader.all_entered

    meeting = come_together(folder, membership(1), _HOST, 5.0, called_off_when(leader_sees_all))
    assert meeting is not None
    assert meeting.all_entered


def test_a_worker_that_is_called_off_before_all_are_there_does_not_come(folder: JobFolder) -> None:
    leader = Meeting.attend(folder, membership(0), _HOST)
    assert leader is not None
    with pytest.raises(_CalledOffError):
        come_together(folder, membership(1), _HOST, 5.0, called_off_when(lambda: None))
    leader.enter()
    assert not leader.all_entered


def test_a_worker_that_is_called_off_as_the_leader_goes_does_not_come(folder: JobFolder) -> None:
    leader = [Meeting.attend(folder, membership(0), _HOST)]
    with pytest.raises(_CalledOffError):
        come_together(folder, membership(1), _HOST, 5.0, called_off_when(leader.clear))
