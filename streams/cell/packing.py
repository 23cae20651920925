"""The state of a cell in msgpack, whatever its numbers are.

msgpack has integers of 64 bits, and a sum over a ledger that never ends may exceed any number of bits. A
state that could not be packed would stop its worker at every snapshot, and no event would be to blame.
"""

from typing import Any

import msgpack

_LARGE_INTEGER = 1
"""An extension type of msgpack: the digits of an integer beyond 64 bits."""


def pack(state: Any) -> bytes:
    """A state in msgpack."""
    packed: bytes = msgpack.packb(state, default=_extended)
    return packed


def unpack(packed: bytes) -> Any:
    """Return the value that `pack` was given, with lists for tuples."""
    return msgpack.unpackb(packed, ext_hook=_unextended)


def _extended(value: Any) -> msgpack.ExtType:
    if type(value) is int:
        return msgpack.ExtType(_LARGE_INTEGER, hex(value).encode())
    raise TypeError(f"a state has a value of type {type(value).__name__}, which msgpack does not write")


def _unextended(code: int, data: bytes) -> Any:
    return int(data, 16) if code == _LARGE_INTEGER else msgpack.ExtType(code, data)
