"""Reasons why a rank cannot continue, for its node and for the other ranks of its generation."""

import math
from contextlib import suppress

from torch import OutOfMemoryError

from executors.gang.folder import JobFolder
from executors.gang.meeting import PeerLostError
from executors.gang.messages import Failed
from executors.lora.faults import described, is_permanent
from executors.node.room import is_for_want_of_room

_CPU_ALLOCATOR = "DefaultCPUAllocator"


class DivergedError(ArithmeticError):
    """The loss or the gradient is not finite."""


def raise_if_diverged(loss: float, gradient_norm: float, samples_done: int) -> None:
    """Check that loss and gradient are finite.

    Raises:
        DivergedError: they are not.
    """
    if not (math.isfinite(gradient_norm) and math.isfinite(loss)):
        numbers = f"loss {loss}, gradient norm {gradient_norm}"
        raise DivergedError(f"the training has diverged: {numbers} after {samples_done} samples")


def is_permanent_anywhere(error: BaseException) -> bool:
    """Return whether a job would fail on every node in the same way: nodes share data, models and seeds."""
    return is_permanent(error) or is_out_of_memory(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the memory of the device was too small.

    On CUDA torch raises an error of its own type. On a CPU its allocator raises a RuntimeError that names it,
    where a limit of the process or of the machine refuses the memory. Where the kernel grants it and ends a
    process later, there is no error: the process is gone.
    """
    return isinstance(error, OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)
    )


def write_note(folder: JobFolder, generation: int, error: Exception, *, permanent: bool) -> None:
    """Write the reason of this rank's failure to the shared disk, if possible."""
    with suppress(OSError):
        folder.write_failure(generation, described(error), permanent)


def final_message(error: Exception, folder: JobFolder, generation: int, needed_bytes: int) -> Failed:
    """Return a failing rank's message to its node, and write a note for the other ranks. A rank that has
    lost another sends the other's note.

    Args:
        needed_bytes: size of the files that it was writing, if a disk refused them.
    """
    if isinstance(error, PeerLostError):
        text, permanent = folder.await_failure(generation) or (described(error), False)
        return Failed(error=text, permanent=permanent, cause="peer")
    permanent = is_permanent_anywhere(error)
    write_note(folder, generation, error, permanent=permanent)
    needs_room = is_for_want_of_room(error)
    return Failed(
        error=described(error), permanent=permanent, needed_bytes=needed_bytes if needs_room else None
    )
