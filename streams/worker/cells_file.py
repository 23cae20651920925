"""The YAML file of a deployment's cells."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from schemas.cells import CellConfigured
from schemas.codec import message, own_faults
from schemas.errors import ReadableError
from streams.worker.bounded_yaml import (
    YamlFaultError,
    YamlPath,
    place_of_non_finite,
    read_text,
    read_yaml,
    shown,
)

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 32
_ANY_EPOCH_S = 0.0


class CellsFileError(ReadableError):
    """The file does not describe cells. The message has one line per fault."""


@dataclass(frozen=True)
class CellsFile:
    """The cells of a file, which is read once."""

    names: tuple[str, ...]
    """Names of the cells, in the order of the file."""
    _cells: Mapping[str, CellConfigured]
    _without_epoch: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `cells:`, a list of cell configurations, whose epoch is optional.

        Raises:
            CellsFileError: the file cannot be read, is too large, or describes no valid cells.
        """
        document = _read(path)
        if not isinstance(document, dict) or list(document) != ["cells"]:
            raise CellsFileError(f"{path}: expected `cells:` and nothing else")
        entries = document["cells"]
        if not isinstance(entries, list) or not entries:
            raise CellsFileError(f"{path}: cells: expected a list of at least one cell")
        cells: dict[str, CellConfigured] = {}
        without_epoch = set()
        faults: list[str] = []
        for index, fields in enumerate(entries):
            place = f"{path}: cells[{index}]"
            lacks_epoch = isinstance(fields, dict) and "epoch_s" not in fields
            try:
                cell = _cell({**fields, "epoch_s": _ANY_EPOCH_S} if lacks_epoch else fields)
            except ValidationError as error:
                faults += [
                    f"{place}{_location(fault['loc'])}: {message(fault)}" for fault in own_faults(error)
                ]
                continue
            except ValueError as error:
                inside = place_of_non_finite(fields)
                faults.append(
                    f"{place}: {error}"
                    if inside is None
                    else f"{place}{_location(inside)}: Input should be a finite number"
                )
                continue
            if cell.cell in cells:
                faults.append(f"{place}: cell {cell.cell} is given twice")
            cells[cell.cell] = cell
            if lacks_epoch:
                without_epoch.add(cell.cell)
        if faults:
            raise CellsFileError("\n".join(faults))
        return cls(tuple(cells), cells, frozenset(without_epoch))

    def cell(self, name: str, epoch_s: float) -> CellConfigured:
        """Return a cell of the file; `epoch_s` is its epoch if the file has none."""
        cell = self._cells[name]
        return cell.model_copy(update={"epoch_s": epoch_s}) if name in self._without_epoch else cell


def load_cells(path: Path, epoch_s: float) -> tuple[CellConfigured, ...]:
    """Return all cells of a file; `epoch_s` is the epoch of those without their own.

    Raises:
        CellsFileError: see `CellsFile.read`.
    """
    file = CellsFile.read(path)
    return tuple(file.cell(name, epoch_s) for name in file.names)


def _cell(fields: Any) -> CellConfigured:
    # Through JSON, for which the strict models are made.
    return CellConfigured.model_validate_json(json.dumps(fields, allow_nan=False))


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            document = read_yaml(read_text(file, MAX_FILE_BYTES), MAX_DEPTH)
    except OSError as error:
        raise CellsFileError(f"{path}: {error.strerror}") from None
    except YamlFaultError as error:
        place = path if error.line is None else f"{path}:{error.line}"
        raise CellsFileError(f"{place}: {error}") from None
    return None if document is None else document[0]


def _location(parts: YamlPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in parts)
