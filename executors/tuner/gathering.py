"""How the workers of a task come together, and what they tell each other when one of them cannot go on."""

import time
from collections.abc import Callable

from executors.gang.folder import JobFolder
from executors.gang.meeting import Meeting, PeerLostError
from executors.gang.membership import Membership

_POLL_S = 0.005
_NOTE_WAIT_S = 1.0


class TaskFailedError(RuntimeError):
    """Another worker of the task has said why it cannot go on."""

    def __init__(self, error: str, permanent: bool) -> None:
        super().__init__(error)
        self.is_permanent = permanent


def come_together(
    folder: JobFolder, membership: Membership, host: str, timeout_s: float, check: Callable[[], None]
) -> Meeting | None:
    """Wait until all workers of a task are there; a worker alone needs no meeting.

    Args:
        folder: where they meet.
        host: where the others reach this worker.
        check: raises if the worker is not to wait any more; then it still comes if all the others have.

    Raises:
        TaskFailedError: another has said why it does not come, or not all have come in time.
    """
    if membership.world == 1:
        return None
    deadline_s = time.monotonic() + timeout_s
    meeting: Meeting | None = None
    while True:
        try:
            check()
        except Exception:
            if meeting is None or meeting.leave():
                raise
            return meeting
        try:
            if meeting is None:
                meeting = Meeting.attend(folder, membership, host)
            if meeting is not None:
                meeting.announce()
                meeting.enter()
                if meeting.all_entered:
                    return meeting
        except PeerLostError:
            meeting = None  # it was the place of a leader that is gone
        note = folder.read_failure(membership.generation)
        if note is not None:
            raise TaskFailedError(*note)
        if time.monotonic() > deadline_s:
            count = membership.world
            raise TaskFailedError(f"not all {count} workers of the task have come in {timeout_s:g} s", False)
        time.sleep(_POLL_S)


def why_peer_was_lost(folder: JobFolder, generation: int, error: PeerLostError) -> Exception:
    """What the one that is gone has said of it, waited for; `error` if nothing."""
    note = folder.await_failure(generation, _NOTE_WAIT_S)
    return error if note is None else TaskFailedError(*note)
