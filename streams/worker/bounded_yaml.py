"""YAML for configuration: limited to the values of JSON, with bounds on size, depth and time, and with line
numbers.

The reader makes one pass over the events of libyaml, if PyYAML was built with it. Values have the types of
JSON: a date stays text. It refuses:

- content that makes a small file large or slow: aliases, deep nesting, long numbers, directives;
- what YAML would silently ignore: a duplicate key, a second document;
- content that is not plain data: other tags, keys that are not scalars;
- numbers in a notation that only YAML 1.1 has, which YAML 1.2 reads as another value (`0100`, `0b11`,
  `1_000`, `1:30`).

`1e-3` is a number, as it is in YAML 1.2.
"""

import math
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

MAX_NUMBER_CHARACTERS = 64
"""Most characters of a number: more than any number of the schemas has, and quick to parse."""

MAX_VALUES = 1_500_000
"""Most values of a document, which takes some 10 s to read at most."""

_MAX_SHOWN_CHARACTERS = 100

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_STRING = f"{_TAG}str"
_NUMBERS = (f"{_TAG}int", f"{_TAG}float")
_PLAIN = {*_NUMBERS, f"{_TAG}bool", f"{_TAG}null"}
_IMPLICIT = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN]
    for first, resolvers in Resolver.yaml_implicit_resolvers.items()
}
_NUMBER_OF_ANY_YAML = re.compile(
    r"""[-+]?(?:
        0 | [1-9][0-9]* | 0x[0-9a-fA-F]+
        | (?:[0-9]+\.[0-9]* | \.[0-9]+)(?:[eE][-+]?[0-9]+)?
        | [0-9]+[eE][-+]?[0-9]+
        | \.(?:inf|Inf|INF|nan|NaN|NAN)
    )""",
    re.VERBOSE,
)
"""A number with the same value in YAML 1.1 and 1.2, or one of YAML 1.2 alone."""
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+")
"""A number of YAML 1.2 that is text in YAML 1.1 if its exponent has no sign, or its mantissa no point."""
_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])%")
"""A directive after any line break of YAML. Many take hours, as each is compared with all before it."""

YamlPath = tuple[str | int, ...]
"""Path of a part of a document: keys of mappings and indices of sequences, from the outside in."""
Lines = dict[str, "LocatedLine"] | list["LocatedLine"] | None
"""Positions of the parts of a mapping or sequence; None for a value without parts."""


class LocatedLine(NamedTuple):
    """Line of a part of a document, and the lines of its own parts."""

    line: int
    """Line from 1: of the key in a mapping, otherwise of the value."""
    parts: Lines


class YamlFaultError(ValueError):
    """A document that is refused. The message is one line."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line
        """Line from 1; None if it is unknown."""


def read_yaml(text: str, max_depth: int) -> tuple[Any, LocatedLine] | None:
    """Return the only document of a text and the lines of its parts; None for an empty text.

    Raises:
        YamlFaultError: the text is not YAML, or it is YAML that is refused.
    """
    directive = _DIRECTIVE.search(text)
    if directive is not None:
        raise YamlFaultError("directives are not allowed", text.count("\n", 0, directive.end()) + 1)
    try:
        return _Reader(yaml.parse(text, Loader=_LOADER), max_depth).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise YamlFaultError(f"not YAML: {error.problem or error.context}", line) from None
    except yaml.YAMLError as error:
        raise YamlFaultError(f"not YAML: {' '.join(str(error).split())}", None) from None


def read_text(file: IO[bytes], max_bytes: int) -> str:
    """Read a file in UTF-8.

    Raises:
        YamlFaultError: the file is too large, or not UTF-8.
    """
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise YamlFaultError(f"larger than {max_bytes} bytes", None)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlFaultError(f"not UTF-8: {error.reason} at byte {error.start}", None) from None


def place_of_non_finite(value: Any, place: YamlPath = ()) -> YamlPath | None:
    """Find the first number in a value that JSON cannot express, such as `.nan`; None if all are finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = (place_of_non_finite(each, (*place, name)) for name, each in items)
    return next((inside for inside in found if inside is not None), None)


def shown(text: str) -> str:
    """Return a text in a form fit for a message: printable, and not longer than a line."""
    clipped = text[:_MAX_SHOWN_CHARACTERS]
    return clipped if clipped.isprintable() else ascii(clipped)


class _Reader:
    def __init__(self, events: Iterator[Any], max_depth: int) -> None:
        self._events = events
        self._max_depth = max_depth
        self._values = 0
        self._constructor = SafeConstructor()

    def document(self) -> tuple[Any, LocatedLine] | None:
        root = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise _fault(event, "a second document: one is read")
                first = next(self._events)
                value, parts = self._node(first, 1)
                root = value, LocatedLine(_line(first), parts)
        return root

    def _node(self, event: Any, depth: int) -> tuple[Any, Lines]:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _fault(event, f"more than {MAX_VALUES} values")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event), None
        if isinstance(event, yaml.AliasEvent):
            raise _fault(event, "aliases are not allowed")
        if depth > self._max_depth:
            raise _fault(event, f"nested deeper than {self._max_depth}")
        if isinstance(event, yaml.MappingStartEvent):
            _refuse_tag(event, f"{_TAG}map")
            return self._mapping(depth)
        _refuse_tag(event, f"{_TAG}seq")
        return self._sequence(depth)

    def _mapping(self, depth: int) -> tuple[dict[str, Any], Lines]:
        values: dict[str, Any] = {}
        lines: dict[str, LocatedLine] = {}
        for key in self._events:
            if isinstance(key, yaml.MappingEndEvent):
                break
            if not isinstance(key, yaml.ScalarEvent):
                raise _fault(key, "a key must be a word")
            if key.value in values:
                raise _fault(key, f"{shown(key.value)} is given twice")
            values[key.value], parts = self._node(next(self._events), depth + 1)
            lines[key.value] = LocatedLine(_line(key), parts)
        return values, lines

    def _sequence(self, depth: int) -> tuple[list[Any], Lines]:
        values: list[Any] = []
        lines: list[LocatedLine] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            value, parts = self._node(event, depth + 1)
            values.append(value)
            lines.append(LocatedLine(_line(event), parts))
        return values, lines

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        tag = event.tag if event.tag not in (None, "!") else _implicit_tag(event)
        if tag == _STRING:
            return text
        if tag not in _PLAIN:
            raise _fault(event, f"tag {shown(tag)} is not allowed")
        if tag in _NUMBERS and len(text) > MAX_NUMBER_CHARACTERS:
            raise _fault(
                event, f"a number of {len(text)} characters: at most {MAX_NUMBER_CHARACTERS} are read"
            )
        try:
            # As in YAML 1.1, `yes` and `no` are Boolean values.
            value = self._constructor.yaml_constructors[tag](
                self._constructor, yaml.ScalarNode(tag, text, event.start_mark, event.end_mark)
            )
        except (ValueError, KeyError, IndexError):
            raise _fault(event, f"{shown(text)} is not of type {tag.removeprefix(_TAG)}") from None
        if tag in _NUMBERS and not _NUMBER_OF_ANY_YAML.fullmatch(text):
            raise _fault(
                event,
                f"{shown(text)} is the number {value} in YAML 1.1 alone: write it in decimal, without "
                "leading zeros, underscores or colons, or in quotes if it is a text",
            )
        return value


def _implicit_tag(event: Any) -> str:
    """Return the tag of a scalar without one; a quoted scalar is always text."""
    if event.implicit[0]:
        for tag, pattern in _IMPLICIT.get(event.value[:1], ()):
            if pattern.match(event.value):
                return str(tag)
        if _EXPONENT.fullmatch(event.value):
            return f"{_TAG}float"
    return _STRING


def _refuse_tag(event: Any, own: str) -> None:
    if event.tag not in (None, "!", own):
        raise _fault(event, f"tag {shown(event.tag)} is not allowed")


def _fault(event: Any, message: str) -> YamlFaultError:
    return YamlFaultError(message, _line(event))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
