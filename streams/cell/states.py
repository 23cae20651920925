"""Dataclasses as values that msgpack writes, by the annotations of their fields.

A field that its class writes in another way has the metadata `NO_STATE` and a default.
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


def state_of(value: Any) -> list[Any]:
    """Return the fields of a dataclass in their order."""
    of: Any = type(value)
    parts = ((getattr(value, name), write) for name, write, _ in _codecs(of))
    return [None if part is None else write(part) for part, write in parts]


def from_state(of: Callable[..., T], state: Sequence[Any], jobs: Mapping[str, Job] = _NO_JOBS) -> T:
    """Return the dataclass that `state_of` was given.

    Args:
        of: its class.
        jobs: the live jobs by id, for fields that are jobs.
    """
    return of(
        **{
            name: None if part is None else read(part, jobs)
            for (name, _, read), part in zip(_codecs(of), state, strict=True)
        }
    )


class _Codec(NamedTuple):
    """Functions that write and read a field."""

    name: str
    write: Callable[[Any], Any]
    read: Callable[[Any, Mapping[str, Job]], Any]


@cache
def _codecs(of: Any) -> Sequence[_Codec]:
    hints = typing.get_type_hints(of)
    kept = [each.name for each in fields(of) if each.metadata.get(_KEY, True)]
    return [_Codec(name, *_codec_of(hints[name])) for name in kept]


def _codec_of(hint: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Mapping[str, Job]], Any]]:
    hint = _without_none(hint)
    origin = typing.get_origin(hint)
    if hint is Job:
        return lambda job: job.job_id, lambda job_id, jobs: jobs[job_id]
    if isinstance(hint, type) and issubclass(hint, Record):
        return lambda record: record.model_dump_json(), lambda json, _: hint.model_validate_json(json)
    if is_dataclass(hint):
        nested: Any = hint
        return state_of, lambda state, jobs: from_state(nested, state, jobs)
    if origin is dict and typing.get_args(hint)[1] is type(None):
        return list, lambda names, _: dict.fromkeys(names)
    if origin is dict and hasattr(typing.get_args(hint)[1], "_fields"):
        item: Any = typing.get_args(hint)[1]
        return dict, lambda items, _: {name: item(*parts) for name, parts in items.items()}
    if origin is tuple:
        return list, lambda items, _: tuple(items)
    return lambda value: value, lambda value, _: value


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        if len(members) == 1:
            return members[0]
    return hint
