"""Which errors are a user's to read, and how they read on one line."""

import errno

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def fault_line(error: Exception) -> str | None:
    """The line for an error that a command may end with; None for one that is a fault of this program."""
    if isinstance(error, OSError) and error.errno in _DISK_FAULTS:
        return f"{error.filename or 'a file'} cannot be written: {error.strerror}"
    if not isinstance(error, _expected()):
        return None
    # Some errors bring a line for each fault, or the end of a log, after a first line that is complete.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    more = f" (and {len(lines) - 1} more lines)" if len(lines) > 1 and not _has_log(error) else ""
    return (lines[0] if lines else type(error).__name__) + more


def _expected() -> tuple[type[Exception], ...]:
    # Imported only when something has gone wrong.
    from infra.entries_file import EntriesFileError
    from infra.errors import CommandError
    from infra.log.publisher import PublishError
    from infra.workloads.bids import WorkloadError
    from infra.workloads.trace import TraceError
    from streams.cells_file import CellsFileError
    from streams.kafka.errors import BrokerError
    from streams.kafka_reader import ReadError
    from streams.replay_sources import ReplayError

    return (
        BrokerError,
        CellsFileError,
        CommandError,
        EntriesFileError,
        PublishError,
        ReadError,
        ReplayError,
        TraceError,
        WorkloadError,
    )


def _has_log(error: Exception) -> bool:
    from infra.kafka.errors import BrokerError

    return isinstance(error, BrokerError)
