"""Spoiling good records: bytes of them, or parts of their JSON."""

import copy
import random
from collections.abc import Callable
from typing import Any

Replacement = Callable[[random.Random, Any], Any]
"""Function from a value to its replacement."""
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -0.0, -1, 1, 10**15, 10**15 + 1, 2**64, 10**400, 1e308, 5e-324, 0.5),
    *(float("nan"), float("inf"), "", "a", "../a", "/a", "\0", "\ud800", "é" * 3_000, [], [[]], {}, {"a": 1}),
]


def mutated_bytes(source: random.Random, value: bytes) -> bytes:
    """The value with a few bytes changed, dropped, repeated or moved."""
    mutant = bytearray(value)
    for _ in range(source.randint(1, 4)):
        start = source.randrange(len(mutant) + 1)
        end = min(len(mutant), start + source.randint(0, 12))
        piece = bytes(mutant[start:end])
        replacement = source.choice(
            [b"", piece * 2, source.randbytes(2), b'"', b"}", b",", b"\\u", b"-", b"e9"]
        )
        mutant[start:end] = replacement
    return bytes(mutant)


def any_odd_value(source: random.Random, _value: Any) -> Any:
    """Draw values of many kinds, most of a wrong type or out of bounds."""
    # A copy: a further change of the document must not change the values themselves.
    return copy.deepcopy(source.choice(ODD_VALUES))


def mutated_json(source: random.Random, value: Any, odd: Replacement = any_odd_value) -> Any:
    """The value with one of its parts replaced by what `odd` gives for it, removed or added."""
    if isinstance(value, dict) and value and source.random() < 0.8:
        name = source.choice(sorted(value))
        action = source.randrange(8)
        if action == 0:
            return {other: part for other, part in value.items() if other != name}
        if action == 1:
            return {**value, source.choice(["x", "\n", "é", "id"]): any_odd_value(source, None)}
        return {**value, name: mutated_json(source, value[name], odd)}
    if isinstance(value, list) and value and source.random() < 0.8:
        index = source.randrange(len(value))
        return [*value[:index], mutated_json(source, value[index], odd), *value[index + 1 :]]
    return odd(source, value)
