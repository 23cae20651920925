"""Spoiling a good record in every way that a careless or hostile producer might."""

import json
import random
from typing import Any

from schemas.codec import Envelope

Headers = tuple[tuple[str, bytes | None], ...]

_ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -0.0, 10**30, "", "\x00", "é" * 300, "../../etc", [], {}, [[]], {"a": {}}
)  # fmt: skip


def mutate(good: Envelope, chance: random.Random) -> tuple[bytes | None, Headers]:
    """A value and headers made of those of `good`, spoiled in one to three places."""
    value: bytes | None = good.value
    headers: Headers = tuple(good.headers())
    if chance.random() < 0.2:
        value, headers = good.canonical, ()
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.7:
            value = _mutate_value(value, chance)
        else:
            headers = _mutate_headers(headers, chance)
    return value, headers


def _mutate_value(value: bytes | None, chance: random.Random) -> bytes | None:
    if not value:
        return value
    place = chance.randrange(len(value))
    match chance.randrange(8):
        case 0:
            return value[:place]
        case 1:
            return value[:place] + bytes([chance.randrange(256)]) + value[place + 1 :]
        case 2:
            return value[:place] + chance.randbytes(chance.randint(1, 40)) + value[place:]
        case 3:
            return None
        case 4:
            return value * chance.randint(2, 4)
        case 5:
            return b"[" * chance.randint(1, 5_000) + value
        case _:
            return _mutate_json(value, chance)


def _mutate_json(value: bytes, chance: random.Random) -> bytes:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return value[::-1]
    target = document
    while isinstance(target, dict) and target:
        key = chance.choice(sorted(target))
        if isinstance(target[key], dict) and chance.random() < 0.7:
            target = target[key]
            continue
        match chance.randrange(3):
            case 0:
                del target[key]
            case 1:
                target[key] = chance.choice(_ODD_VALUES)
            case _:
                target[f"{key}2"] = target[key]
        break
    return json.dumps(document).encode()


def _mutate_headers(headers: Headers, chance: random.Random) -> Headers:
    if not headers:
        return (("ce_type", chance.randbytes(5)),)
    place = chance.randrange(len(headers))
    name, value = headers[place]
    spoiled: tuple[str, bytes | None]
    match chance.randrange(5):
        case 0:
            return headers[:place] + headers[place + 1 :]
        case 1:
            spoiled = (name, None)
        case 2:
            spoiled = (name, chance.randbytes(chance.randint(0, 30)))
        case 3:
            spoiled = (name, (value or b"") * 200)
        case _:
            spoiled = (name.upper(), value)
    return (*headers[:place], spoiled, *headers[place + 1 :])
