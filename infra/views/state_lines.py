"""The described state of a cell (`Cell.describe`) as aligned lines of text, whatever policies it has."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.text import written

MOST_ROWS = 50
"""Rows of one table that are shown."""
_LEAST_UNIX_S = 1e9
"""Seconds from here on are a time, and fewer a duration, or a time of a cell that begins at 0."""
_INDENT = "  "
_NONE = "–"


def state_lines(described: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Lines of text: first what is short, a line each, then tables and what is nested."""
    margin = _INDENT * depth
    short = {name: _short(name, value) for name, value in described.items() if _is_short(value)}
    width = max(map(len, short), default=0)
    for name, value in short.items():
        yield f"{margin}{name:<{width}}  {value}"
    for name, value in described.items():
        if name in short:
            continue
        yield f"{margin}{name}"
        rows = _rows(value)
        if rows is None:
            yield from state_lines(value, depth + 1)
        else:
            yield from (f"{margin}{_INDENT}{line}" for line in _table(rows))


def _is_short(value: Any) -> bool:
    """Whether a value is shown on one line."""
    return not any(isinstance(item, Mapping) for item in _items(value))


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def _rows(value: Any) -> Sequence[Mapping[str, Any]] | None:
    """The rows of a table; None where not all items have fields."""
    if not all(isinstance(item, Mapping) for item in _items(value)):
        return None
    if isinstance(value, Mapping):
        return [{"id": id, **row} for id, row in value.items()] if not _have_tables(value) else None
    return list(value)


def _have_tables(value: Mapping[str, Any]) -> bool:
    """Whether items have tables of their own, so that one is shown after the other."""
    return any("jobs" in item and isinstance(item["jobs"], Mapping) for item in value.values())


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Aligned columns; one that is empty in every row is left out."""
    shown = [{name: _short(name, value) for name, value in row.items()} for row in rows[:MOST_ROWS]]
    names = dict.fromkeys(name for row in shown for name in row)
    columns = [name for name in names if any(row.get(name, _NONE) != _NONE for row in shown)]
    widths = {name: max(len(name), *(len(row.get(name, _NONE)) for row in shown)) for name in columns}
    yield _INDENT.join(name.ljust(widths[name]) for name in columns).rstrip()
    for row in shown:
        yield _INDENT.join(row.get(name, _NONE).ljust(widths[name]) for name in columns).rstrip()
    if len(rows) > MOST_ROWS:
        yield f"… and {len(rows) - MOST_ROWS} more: --json has all"


def _short(name: str, value: Any) -> str:
    """A value on one line; a dash for one that is missing or empty."""
    match value:
        case bool():
            return "yes" if value else "no"
        case float() if name.endswith("_s") and value >= _LEAST_UNIX_S:
            return written(value)
        case float():
            return f"{value:.6g}"
        case int():
            return f"{value:,}" if name.endswith(("_micros", "_bytes")) else str(value)
        case Mapping() if value:
            return ", ".join(f"{key} {_nested(key, item)}" for key, item in value.items())
        case list() if value:
            return ", ".join(_nested(name, item) for item in value)
        case str() if value:
            return value
        case _:
            return _NONE


def _nested(name: str, value: Any) -> str:
    return f"({_short(name, value)})" if isinstance(value, Mapping | list) else _short(name, value)
