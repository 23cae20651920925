"""What a process of a job says when it cannot go on, to its node and to the others of its generation."""

from contextlib import suppress

from torch import OutOfMemoryError

from executors.gang.folder import JobFolder
from executors.gang.meeting import PeerLostError
from executors.gang.messages import Failed
from executors.lora.faults import described, is_permanent
from executors.node.room import is_for_want_of_room

_NOTE_WAIT_S = 1.0
"""A process that fails says why on the shared disk before it is gone, which others see at once."""


class MissingPeersError(PeerLostError):
    """Not all processes of a generation have come in time."""


def last_word(error: Exception, folder: JobFolder, generation: int, needed_bytes: int) -> Failed:
    """What it tells its node. The others read it on the shared disk, and where another was lost, so does this
    one.

    Args:
        needed_bytes: what it was writing, for a disk that has refused it.
    """
    if isinstance(error, PeerLostError):
        note = folder.await_failure(generation, _NOTE_WAIT_S)
        text, permanent = note or (described(error), False)
        return Failed(error=text, permanent=permanent, cause="peer")
    text = described(error)
    permanent = is_permanent(error) or isinstance(error, OutOfMemoryError | MemoryError)
    with suppress(OSError):
        folder.write_failure(generation, text, permanent)
    needs_room = is_for_want_of_room(error)
    return Failed(error=text, permanent=permanent, needed_bytes=needed_bytes if needs_room else None)
