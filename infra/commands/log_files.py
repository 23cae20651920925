"""A log as two files of JSON lines, as `millrace replay --from` reads them."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.commands.replay import DECISIONS_FILE, LEDGER_FILE
from infra.errors import disk_faults
from schemas.codec import Decision
from streams.cell import LedgerEvent
from streams.replay_sources import ledger_line


class LogFiles:
    """Writes a ledger and its decisions into a folder, all at once or bit by bit.

    Its methods raise `CommandError` where the disk refuses.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with disk_faults(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._ledger = (directory / LEDGER_FILE).open("wb")
            self._decisions = (directory / DECISIONS_FILE).open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with disk_faults(self._directory):
            self._ledger.close()
            self._decisions.close()

    def write(self, entries: Iterable[LedgerEvent], decisions: Iterable[Decision]) -> None:
        """Write the next events, and what was decided because of them."""
        with disk_faults(self._directory):
            self._ledger.writelines(ledger_line(entry) for entry in entries)
            self._decisions.writelines(decision.canonical + b"\n" for decision in decisions)
