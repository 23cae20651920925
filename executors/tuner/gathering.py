"""How the ranks of a task come together, and why one of them was lost."""

from collections.abc import Callable

from executors.gang.faults import note_of_peer
from executors.gang.folder import JobFolder
from executors.gang.meeting import Assembly, Meeting, PeerFailedError, PeerLostError
from executors.gang.membership import Membership


class HaltedError(Exception):
    """The part is to end, and has not come together with the others."""


def come_together(
    folder: JobFolder, membership: Membership, host: str, timeout_s: float, is_halted: Callable[[], bool]
) -> Meeting | None:
    """Wait until all ranks of a task have come; a rank alone needs no meeting.

    Rank 0 is started again where it was lost, and then opens another meeting of the same generation.

    Args:
        folder: where they meet.
        host: where the others reach this rank.
        is_halted: whether the part is to end. Then it still comes if all the others have.

    Raises:
        HaltedError: the part is to end before.
        PeerFailedError: another has written why it does not come, or not all have come in time.
    """
    if membership.world == 1:
        return None
    assembly = Assembly(folder, host, reopens=True)
    meeting = assembly.come_together(membership, timeout_s, is_wanted=lambda: not is_halted())
    if meeting is None:
        raise HaltedError
    return meeting


def why_peer_was_lost(folder: JobFolder, generation: int, error: PeerLostError) -> PeerLostError:
    """Return what the rank that is gone has written of it; `error` if nothing, or if it is that already."""
    if isinstance(error, PeerFailedError):
        return error
    note = note_of_peer(folder, generation)
    return error if note is None else PeerFailedError(*note)
