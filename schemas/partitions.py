"""Which partition a key lies in: one rule for those who write and those who read it."""

from functools import lru_cache

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


@lru_cache(maxsize=4_096)
def key_partition(key: str, partitions: int) -> int:
    """Return the partition where Kafka's default partitioner puts a record of this key.

    So a producer in any language that follows this default reaches a node (in `commands`) or a cell (in all
    other topics) by key alone.

    Raises:
        ValueError: there is no partition.
    """
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    return (_murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def _murmur2(key: bytes) -> int:
    """Hash a key as Kafka does: 32-bit MurmurHash2 (Austin Appleby) under Kafka's seed."""
    code = _SEED ^ len(key)
    whole = len(key) // 4 * 4
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        code = code * _MULTIPLIER & _MASK ^ word
    if whole < len(key):
        code = (code ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    code = (code ^ code >> 13) * _MULTIPLIER & _MASK
    return code ^ code >> 15
