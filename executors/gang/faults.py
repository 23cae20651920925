"""Reasons why a rank cannot continue, for its node and for the other ranks of its generation."""

import math
from contextlib import suppress

from torch import OutOfMemoryError

from executors.gang.folder import JobFolder
from executors.gang.meeting import PeerFailedError, PeerLostError
from executors.gang.messages import Failed
from executors.lora.faults import described, is_permanent
from executors.node.room import is_for_lack_of_room

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


def share_failure(
    error: Exception, folder: JobFolder, generation: int, *, permanent: bool, has_peers: bool = True
) -> tuple[Exception, bool]:
    """Write a failing rank's error for the other ranks, if the disk allows it, or read the error of a lost
    one.

    Args:
        permanent: whether the job would fail on every node, by the rank's own error.

    Returns:
        the error for which the generation ends, a `PeerLostError` if it is another rank's; and whether it is
        permanent.
    """
    if not isinstance(error, PeerLostError):
        if has_peers:
            with suppress(OSError):
                folder.write_failure(generation, described(error), permanent)
        return error, permanent
    if not isinstance(error, PeerFailedError) and (note := folder.await_failure(generation)) is not None:
        error = PeerFailedError(*note)
    return error, isinstance(error, PeerFailedError) and error.is_permanent


def final_message(error: Exception, folder: JobFolder, generation: int, needed_bytes: int) -> Failed:
    """Return a failing rank's message to its node: see `share_failure`.

    Args:
        needed_bytes: size of the files that it was writing, if a disk refused them.
    """
    error, permanent = share_failure(error, folder, generation, permanent=is_permanent_anywhere(error))
    if isinstance(error, PeerLostError):
        return Failed(error=described(error), permanent=permanent, cause="peer")
    needs_room = is_for_lack_of_room(error)
    return Failed(
        error=described(error), permanent=permanent, needed_bytes=needed_bytes if needs_room else None
    )
