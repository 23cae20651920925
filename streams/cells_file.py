"""The YAML file of a deployment's cells."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

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
    if not isinstance(document, dict) or list(document) != ["cells"]:
        raise CellsFileError(f"{path}: expected `cells:` and nothing beside it")
    entries = document["cells"]
    if not isinstance(entries, list) or not entries:
        raise CellsFileError(f"{path}: cells: expected a list of at least one cell")
    cells: list[CellConfigured] = []
    faults: list[str] = []
    for index, fields in enumerate(entries):
        place = f"{path}: cells[{index}]"
        try:
            cell = _cell(fields, epoch_s)
        except ValidationError as error:
            faults += [f"{place}{_location(fault['loc'])}: {fault['msg']}" for fault in _own_faults(error)]
        except ValueError as error:
            faults.append(f"{place}: {error}")
        else:
            if any(cell.cell == known.cell for known in cells):
                faults.append(f"{place}: cell {cell.cell} is given twice")
            cells.append(cell)
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


def _own_faults(error: ValidationError) -> list[ErrorDetails]:
    """Without the lists that are too short only because an entry of theirs is at fault."""
    faults = error.errors()
    above = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    return [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in above]


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CellsFileError(f"{path}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise CellsFileError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        _refuse_bombs(content)
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        repeated = [] if root is None else list(_repeated_keys(root))
        if repeated:
            raise ValueError(f"given twice: {', '.join(repeated)}")
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError) as error:
        raise CellsFileError(f"{path}: {' '.join(str(error).split())}") from None


def _refuse_bombs(content: bytes) -> None:
    """Aliases may blow a small file up to any size, and deep nesting exhausts the stack."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"aliases are not allowed{_line(event)}")
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}{_line(event)}")


def _repeated_keys(node: yaml.Node) -> Iterator[str]:
    """Keys of which YAML would silently keep the last."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    yield f"{key.value}{_line(key)}"
                seen.add(key.value)
            yield from _repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated_keys(value)


def _line(marked: yaml.Node | yaml.Event) -> str:
    return "" if marked.start_mark is None else f" (line {marked.start_mark.line + 1})"


def _location(parts: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
