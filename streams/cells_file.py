"""The YAML file of a deployment's cells."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from schemas.cells import CellConfigured

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 32


class CellsFileError(ValueError):
    """The file does not describe cells. The message has one line per fault."""


def load_cells(path: Path, epoch_s: float | None = None) -> tuple[CellConfigured, ...]:
    """Read `cells:`, a list of cell configurations; `epoch_s` stands in for cells that do not say theirs.

    Raises:
        CellsFileError: the file cannot be read, is too large, or describes no valid cells.
    """
    document = _read(path)
    if not isinstance(document, dict) or set(document) != {"cells"} or not isinstance(document["cells"], list):
        raise CellsFileError(f"{path}: expected `cells:` with a list of cells, and nothing beside it")
    cells: list[CellConfigured] = []
    faults: list[str] = []
    for index, fields in enumerate(document["cells"]):
        try:
            cells.append(_cell(fields, epoch_s))
        except ValidationError as error:
            faults += [f"{path}: cells[{index}]{_place(fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        except ValueError as error:
            faults.append(f"{path}: cells[{index}]: {error}")
    names = [cell.cell for cell in cells]
    faults += [f"{path}: cell {name} is given twice" for name in sorted({n for n in names if names.count(n) > 1})]
    if not document["cells"]:
        faults.append(f"{path}: there is no cell")
    if faults:
        raise CellsFileError("\n".join(faults))
    return tuple(cells)


def _cell(fields: Any, epoch_s: float | None) -> CellConfigured:
    if isinstance(fields, dict) and "epoch_s" not in fields and epoch_s is not None:
        fields = {**fields, "epoch_s": epoch_s}
    try:
        text = json.dumps(fields, allow_nan=False)
    except TypeError as error:
        # YAML reads 2026-01-01 as a date; JSON, which the strict models are made for, has none.
        raise ValueError(f"{error}: put the value in quotes") from None
    return CellConfigured.model_validate_json(text)


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CellsFileError(f"{path}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise CellsFileError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        faults = list(_faults_of_form(content))
        if faults:
            raise CellsFileError("\n".join(f"{path}: {fault}" for fault in faults))
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, CellsFileError):
            raise
        raise CellsFileError(f"{path}: {' '.join(str(error).split())}") from None


def _faults_of_form(content: bytes) -> Iterator[str]:
    """What YAML allows and a configuration must not have.

    An alias may blow a small file up to any size, and of a repeated key all but the last would be lost.
    """
    keys: list[set[str] | None] = []
    expects_key: list[bool] = []
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            yield f"line {line}: aliases are not allowed"
            return
        if isinstance(event, yaml.CollectionEndEvent):
            keys.pop()
            expects_key.pop()
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        in_mapping = bool(keys) and keys[-1] is not None
        if in_mapping:
            if expects_key[-1] and isinstance(event, yaml.ScalarEvent):
                known = keys[-1]
                assert known is not None
                if event.value in known:
                    yield f"line {line}: key {event.value!r} is given twice"
                known.add(event.value)
            expects_key[-1] = not expects_key[-1]
        if isinstance(event, yaml.CollectionStartEvent):
            if len(keys) == MAX_DEPTH:
                yield f"line {line}: nested deeper than {MAX_DEPTH}"
                return
            keys.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
            expects_key.append(True)


def _place(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
