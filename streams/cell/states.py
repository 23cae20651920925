"""Dataclasses as values that msgpack writes, by the annotations of their fields.

A field that its class writes in another way has the metadata `NO_STATE`.
"""

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from schemas.base import Record
from streams.cell.jobs import Job

T = TypeVar("T")
_KEY = "state"
NO_STATE = types.MappingProxyType({_KEY: False})
"""Metadata of a field that is not part of the state."""
_NO_JOBS: Mapping[str, Job] = types.MappingProxyType({})


class Stateful:
    """Base of a dataclass whose fields are its whole state. It has an `__init__` of its own and
    `dataclass(init=False)`; attributes that are not state are set there, and are not fields."""

    def state(self) -> list[Any]:
        """Return the state, in types that msgpack writes."""
        return state_of(self)

    def restore(self, state: Sequence[Any]) -> None:
        """Set the state."""
        of: Any = type(self)
        for (name, _, read), part in zip(_codecs(of), state, strict=True):
            setattr(self, name, read(part, _NO_JOBS))


def state_of(value: Any) -> list[Any]:
    """Return the fields of a dataclass in their order."""
    of: Any = type(value)
    return [write(getattr(value, name)) for name, write, _ in _codecs(of)]


def from_state(
    of: Callable[..., T], state: Sequence[Any], jobs: Mapping[str, Job] = _NO_JOBS, **others: Any
) -> T:
    """Return the dataclass that `state_of` was given.

    Args:
        of: its class.
        jobs: the live jobs by id, for fields that are jobs.
        others: fields that are not part of the state.
    """
    parts = {name: read(part, jobs) for (name, _, read), part in zip(_codecs(of), state, strict=True)}
    return of(**parts, **others)


_Write = Callable[[Any], Any]
_Read = Callable[[Any, Mapping[str, Job]], Any]


class _Codec(NamedTuple):
    """Functions that write and read a field."""

    name: str
    write: _Write
    read: _Read


@cache
def _codecs(of: Any) -> Sequence[_Codec]:
    hints = typing.get_type_hints(of)
    kept = [each.name for each in fields(of) if each.metadata.get(_KEY, True)]
    return [_Codec(name, *_codec_of(hints[name])) for name in kept]


def _codec_of(hint: Any) -> tuple[_Write, _Read]:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union) and len(parts) == 2 and type(None) in parts:
        (value,) = (part for part in parts if part is not type(None))
        return _optional(*_codec_of(value))
    if origin is dict:
        return _codec_of_dict(*parts)
    if origin in (list, set, tuple):
        return _codec_of_items(origin, parts)
    if hint is Job:
        return lambda job: job.job_id, lambda job_id, jobs: jobs[job_id]
    if isinstance(hint, type) and issubclass(hint, Record):
        return lambda record: record.model_dump_json(), lambda json, _: hint.model_validate_json(json)
    if is_dataclass(hint):
        nested: Any = hint
        return state_of, lambda state, jobs: from_state(nested, state, jobs)
    if hasattr(hint, "_fields"):
        return list, lambda parts, _: hint(*parts)
    return _same, lambda value, _: value


def _codec_of_dict(key: Any, item: Any) -> tuple[_Write, _Read]:
    if item is type(None):
        return list, lambda names, _: dict.fromkeys(names)
    write, read = _codec_of(item)
    if key in (str, bytes) or typing.get_origin(key) is typing.Literal:
        if write is _same:
            return _same, lambda items, _: items
        return (
            lambda items: {name: write(value) for name, value in items.items()},
            lambda items, jobs: {name: read(value, jobs) for name, value in items.items()},
        )
    # msgpack reads no other keys.
    write_key, read_key = _codec_of(key)
    if write is write_key is _same:
        return lambda items: [*map(list, items.items())], lambda items, _: dict(items)
    return (
        lambda items: [[name, write(value)] for name, value in items.items()],
        lambda items, jobs: {read_key(name, jobs): read(value, jobs) for name, value in items},
    )


def _codec_of_items(origin: Any, hints: tuple[Any, ...]) -> tuple[_Write, _Read]:
    """Return the codec of lists, sets and tuples. Their items have one type, or each item of a tuple has its
    own."""
    if origin is tuple and hints[1:] != (...,):
        codecs = [_codec_of(hint) for hint in hints]
        if all(write is _same for write, _ in codecs):
            return list, lambda items, _: tuple(items)
        return (
            lambda items: [write(item) for (write, _), item in zip(codecs, items, strict=True)],
            lambda items, jobs: tuple(
                read(item, jobs) for (_, read), item in zip(codecs, items, strict=True)
            ),
        )
    write, read = _codec_of(hints[0])
    in_order: Callable[[Any], Any] = sorted if origin is set else list
    if write is _same:
        return in_order, lambda items, _: origin(items)
    return (
        lambda items: [write(item) for item in in_order(items)],
        lambda items, jobs: origin(read(item, jobs) for item in items),
    )


def _optional(write: _Write, read: _Read) -> tuple[_Write, _Read]:
    if write is _same:
        return write, read
    return (
        lambda value: None if value is None else write(value),
        lambda value, jobs: None if value is None else read(value, jobs),
    )


def _same(value: Any) -> Any:
    return value
