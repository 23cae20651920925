"""Meeting of the ranks of a task, and the reason why a rank was lost."""

from collections.abc import Callable

from executors.gang.faults import note_of_peer
from executors.gang.folder import JobFolder
from executors.gang.meeting import Assembly, Meeting, PeerFailedError, PeerLostError
from executors.gang.membership import Membership


class HaltedError(Exception):
    """The part is halted before it met the other ranks."""


def come_together(
    folder: JobFolder, membership: Membership, host: str, timeout_s: float, is_halted: Callable[[], bool]
) -> Meeting | None:
    """Wait until all ranks of a task have joined; a single rank needs no meeting.

    A lost rank 0 is restarted, and opens another meeting of the same generation.

    Args:
        folder: folder of the meeting.
        host: address at which the others reach this rank.
        is_halted: whether the part is to end. It still joins if all others have joined.

    Raises:
        HaltedError: the part is halted before.
        PeerFailedError: another rank has written why it does not join, or not all have joined in time.
    """
    if membership.world == 1:
        return None
    assembly = Assembly(folder, host, reopens=True)
    meeting = assembly.come_together(membership, timeout_s, is_wanted=lambda: not is_halted())
    if meeting is None:
        raise HaltedError
    return meeting


def why_peer_was_lost(folder: JobFolder, generation: int, error: PeerLostError) -> PeerLostError:
    """Return the error that the lost rank has written; `error` if there is no other."""
    if isinstance(error, PeerFailedError):
        return error
    note = note_of_peer(folder, generation)
    return error if note is None else PeerFailedError(*note)
