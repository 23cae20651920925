"""Every number in a record, with the bounds that its schema gives it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from schemas.base import OpenUnion, TaggedUnion

Path = tuple[str | int, ...]
Number = int | float


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number in the schema; None if it has none."""

    kind: type[int] | type[float]
    least: Number | None = None
    """The least that it may be."""
    most: Number | None = None
    above: Number | None = None
    """It is more than this; in place of `least`."""
    below: Number | None = None

    @property
    def has_both(self) -> bool:
        return None not in (self.least if self.above is None else self.above, self.highest)

    @property
    def lowest(self) -> Number | None:
        return self.least if self.above is None else self._next(self.above, math.inf)

    @property
    def highest(self) -> Number | None:
        return self.most if self.below is None else self._next(self.below, -math.inf)

    def at_the_edges(self) -> list[Number]:
        """The least and the most, and what is just inside."""
        low, high = self.lowest, self.highest
        assert low is not None
        assert high is not None
        return [self.kind(n) for n in (low, self._next(low, math.inf), high, self._next(high, -math.inf))]

    def _next(self, number: Number, towards: float) -> Number:
        if self.kind is int:
            return number + (1 if towards > number else -1)
        return math.nextafter(number, towards)


def types_of(model: type[BaseModel]) -> Iterator[tuple[str, Bounds]]:
    """Every number in a model and in those that it may hold, by name of model and field."""
    seen: set[type[BaseModel]] = set()
    waiting = [model]
    while waiting:
        model = waiting.pop()
        if model in seen:
            continue
        seen.add(model)
        for name, field in model.model_fields.items():
            for part in _parts(field.annotation, field.metadata):
                if isinstance(part, Bounds):
                    yield f"{model.__name__}.{name}", part
                else:
                    waiting.append(part)


def places_in(record: BaseModel, path: Path = ()) -> Iterator[tuple[Path, Bounds]]:
    """Where a record has numbers, or may have some; of lists, in the first element."""
    for name, field in type(record).model_fields.items():
        yield from _places(getattr(record, name), field.annotation, field.metadata, (*path, name))


def _places(value: Any, annotation: Any, metadata: list[Any], path: Path) -> Iterator[tuple[Path, Bounds]]:
    if isinstance(value, BaseModel):
        yield from places_in(value, path)
    elif isinstance(value, tuple | dict):
        element, inner = _element(annotation)
        if value and element is not None:
            key, first = (0, value[0]) if isinstance(value, tuple) else next(iter(value.items()))
            yield from _places(first, element, inner, (*path, key))
    else:
        yield from ((path, part) for part in _parts(annotation, metadata) if isinstance(part, Bounds))


def _element(annotation: Any) -> tuple[Any, list[Any]]:
    """The annotation of the elements of a tuple, or of the values of a dictionary."""
    for part in (annotation, *get_args(annotation)):
        origin, arguments = get_origin(part), get_args(part)
        if origin is Annotated:
            return _element(arguments[0])
        if origin is tuple:
            return arguments[0], []
        if origin is dict:
            return arguments[1], []
    return None, []


def _parts(annotation: Any, metadata: list[Any]) -> Iterator[Bounds | type[BaseModel]]:
    """The numbers and the models in an annotation."""
    metadata = [each for one in metadata for each in (one.metadata if isinstance(one, FieldInfo) else [one])]
    if annotation in (int, float):
        yield _bounds(annotation, metadata)
        return
    yield from (m for each in metadata if isinstance(each, TaggedUnion | OpenUnion) for m in each.members)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _parts(arguments[0], [*arguments[1:], *metadata])
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from _parts(argument, metadata)
    elif origin is not None and origin is not Literal:
        for argument in arguments:
            yield from _parts(argument, [])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _bounds(kind: type[int] | type[float], metadata: list[Any]) -> Bounds:
    found: dict[str, Any] = {}
    for each in metadata:
        match each:
            case Ge():
                found["least"] = each.ge
            case Gt():
                found["above"] = each.gt
            case Le():
                found["most"] = each.le
            case Lt():
                found["below"] = each.lt
    return Bounds(kind, **found)
