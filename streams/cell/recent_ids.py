"""Recently seen ids, by writer: no writer can use up another's ids, or displace them."""

import hashlib
from collections import OrderedDict
from typing import Any

_DIGEST_BYTES = 16


class RecentIds:
    """The last ids of each writer.

    A writer loses its own oldest id beyond `limit_per_writer`. Where the writers together reach `limit`, the
    one that wrote nothing for longest loses first. So a writer that floods the window loses its own ids, not
    those of others.
    """

    def __init__(self, limit: int, limit_per_writer: int) -> None:
        self._limit = limit
        self._limit_per_writer = limit_per_writer
        self._writers: OrderedDict[bytes, OrderedDict[bytes, None]] = OrderedDict()
        """Ids, oldest first, by digest of the writer, least recently active first."""
        self._count = 0

    def note(self, writer: str, id: str) -> bool:
        """Keep an id, and return whether it is new."""
        key, digest = _digest(writer), _digest(id)
        ids = self._writers.setdefault(key, OrderedDict())
        self._writers.move_to_end(key)
        if digest in ids:
            return False
        ids[digest] = None
        self._count += 1
        if len(ids) > self._limit_per_writer:
            self._forget_oldest_of(key)
        elif self._count > self._limit:
            self._forget_oldest_of(next(iter(self._writers)))
        return True

    def has(self, writer: str, id: str) -> bool:
        """Return whether an id is kept."""
        return _digest(id) in self._writers.get(_digest(writer), ())

    def state(self) -> list[Any]:
        """Return everything, in types that msgpack writes."""
        return [[writer, b"".join(ids)] for writer, ids in self._writers.items()]

    def restore(self, state: list[Any]) -> None:
        """Set the state, of equal limits."""
        self._writers = OrderedDict(
            (
                writer,
                OrderedDict.fromkeys(
                    ids[start : start + _DIGEST_BYTES] for start in range(0, len(ids), _DIGEST_BYTES)
                ),
            )
            for writer, ids in state
        )
        self._count = sum(map(len, self._writers.values()))

    def _forget_oldest_of(self, writer: bytes) -> None:
        ids = self._writers[writer]
        ids.popitem(last=False)
        self._count -= 1
        if not ids:
            del self._writers[writer]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
