"""The latest value of each figure of a benchmark, with its commit and machine, kept with the report."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bench.runs import digest_of
from bench.suite import SUITES
from infra.errors import CommandError, disk_faults
from schemas.codec import describe

_LIBRARIES = "requirements.lock"
_FILE = "figures.json"


@dataclass(frozen=True)
class KeptFigure:
    """The last measured value of a figure."""

    name: str
    value: float | None
    """None if it was not finite."""
    unit: str
    note: str
    quick: bool
    seed: int
    commit: str
    machine: str
    sources: str
    """Digest of the measured packages."""

    def is_current(self, bench: str) -> bool:
        """Return whether the measured sources are unchanged."""
        return self.sources == sources_of(bench)


_FIGURES = TypeAdapter(list[KeptFigure])


@cache
def sources_of(bench: str) -> str:
    """Return the digest of the sources that a benchmark measures, in this checkout."""
    return digest_of((*SUITES[bench].sources, _LIBRARIES))


class KeptFigures:
    """Figures of one folder, by name; a new value of a figure replaces the one before."""

    def __init__(self, folder: Path) -> None:
        """Read the kept figures.

        Raises:
            CommandError: the file is damaged, or cannot be read.
        """
        self._path = folder / _FILE
        self._figures: dict[str, KeptFigure] = {}
        with disk_faults(self._path):
            text = self._path.read_text() if self._path.exists() else "[]"
        try:
            self._figures = {figure.name: figure for figure in _FIGURES.validate_json(text)}
        except ValidationError as error:
            raise CommandError(
                f"{self._path}: not a list of figures ({describe(error)}): remove it"
            ) from None

    def find(self, name: str) -> KeptFigure | None:
        """Return the latest value of a figure, of any sources."""
        return self._figures.get(name)

    def keep(self, figures: Sequence[KeptFigure]) -> None:
        """Replace or add figures, in one file that is written whole.

        Raises:
            CommandError: the file cannot be written.
        """
        self._figures |= {figure.name: figure for figure in figures}
        partial = self._path.with_suffix(".partial")
        with disk_faults(self._path):
            partial.write_text(json.dumps([asdict(each) for each in self._figures.values()], indent=1) + "\n")
            partial.replace(self._path)
