"""Rows in a file of JSON lines, appended as they come, so that a benchmark that is stopped goes on later."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bench.auction.runs.trial import Row, Trial
from infra.errors import CommandError, disk_faults
from schemas.codec import describe

ROWS_FILE = "rows.jsonl"
_ROW = TypeAdapter(Row)


class Rows:
    """All rows of a folder; those of other sources are kept in the file and never found."""

    def __init__(self, folder: Path, sources: str) -> None:
        """Read what is there; a last line that was torn by a kill is cut off.

        Raises:
            CommandError: another line is no row, or the disk refuses.
        """
        self.sources = sources
        self._path = folder / ROWS_FILE
        self._rows: dict[tuple[str, int, str, str], Row] = {}
        with disk_faults(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            for row in _read(self._path):
                self._keep(row)

    def append(self, row: Row) -> None:
        """Keep a row for good.

        Raises:
            CommandError: the disk refuses.
        """
        line = json.dumps(asdict(row)) + "\n"
        with disk_faults(self._path), self._path.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._keep(row)

    def find(self, trial: Trial) -> Row | None:
        """The outcome of a trial under these sources. One made alone also serves a trial that need not be."""
        row = self._rows.get((trial.setting_name, trial.seed, trial.contender, self.sources))
        return row if row is not None and (row.alone or not trial.alone) else None

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Trials without a row, each once, in their order."""
        return [trial for trial in dict.fromkeys(trials) if self.find(trial) is None]

    def values(self, trial: Trial) -> dict[str, float]:
        """What a trial that was run gave.

        Raises:
            KeyError: it was not run.
        """
        row = self.find(trial)
        if row is None:
            raise KeyError(f"{trial}: not run")
        return dict(row.values)

    def _keep(self, row: Row) -> None:
        held = self._rows.get(row.key)
        if held is None or row.alone or not held.alone:
            self._rows[row.key] = row


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    rows = []
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            rows.append(_ROW.validate_json(line))
        except ValidationError as error:
            raise CommandError(
                f"{path}, line {number}: no row of a benchmark ({describe(error)}): remove it"
            ) from None
    return rows
