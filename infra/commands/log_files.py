"""Logs as two files of JSON lines, as `millrace replay --from` reads them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.errors import CommandError, disk_faults
from schemas.codec import Decision, Envelope, InvalidRecordError, decode_decision
from streams.cell.ledger_event import LedgerEvent
from streams.replay.files import DECISIONS_FILE, LEDGER_FILE, ledger_line, opened, read_ledger_file

_UNFINISHED = ".unfinished"


class LogFiles:
    """Writes a ledger and its decisions into a folder, at once or in parts.

    The files get their names when all is written; after any error, older files are unchanged. Methods raise
    `CommandError` if the disk fails.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with disk_faults(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._ledger = (directory / f"{LEDGER_FILE}{_UNFINISHED}").open("wb")
            self._decisions = (directory / f"{DECISIONS_FILE}{_UNFINISHED}").open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        files = (self._ledger, self._decisions)
        try:
            with disk_faults(self._directory):
                # Closes both, even if the disk fails on one.
                with self._ledger, self._decisions:
                    pass
                if kind is None:
                    for file in files:
                        Path(file.name).replace(file.name.removesuffix(_UNFINISHED))
        finally:
            for file in files:
                Path(file.name).unlink(missing_ok=True)

    def write(self, entries: Iterable[LedgerEvent], decisions: Iterable[Decision]) -> None:
        """Write the next events, and the decisions about them."""
        with disk_faults(self._directory):
            self._ledger.writelines(ledger_line(entry) for entry in entries)
            self._decisions.writelines(decision.canonical + b"\n" for decision in decisions)


def read_log_files(ledger: Path) -> Iterator[LedgerEvent | Decision]:
    """Yield the events of a ledger file, and then the decisions of the file next to it.

    Raises:
        CommandError: a file is missing or a line of it malformed; the message names both.
    """
    yield from read_ledger_file(ledger)
    decisions = ledger.with_name(DECISIONS_FILE)
    with opened(decisions, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decode_decision(line.removesuffix(b"\n"))
            except InvalidRecordError as error:
                raise CommandError(f"{decisions}:{number}: {error}") from None


def read_records(ledger: Path) -> Iterator[Envelope | Decision]:
    """Yield the records of `read_log_files` without the events' places in the ledger."""
    for entry in read_log_files(ledger):
        yield entry if isinstance(entry, Decision) else entry.envelope
