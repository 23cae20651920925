"""The hash chain of a cell's log: each link covers the one before, an event and a decision."""

import hashlib

CHAIN_BYTES = 32
CHAIN_START = bytes(CHAIN_BYTES)
LONGEST_LINE_BYTES = 2_048
"""A longer event is chained by its digest: an offer of a thousand servers leads to thousands of decisions,
and its line would be hashed for each of them."""


def chained_part(line: bytes) -> bytes:
    """Return what links cover of an event: its line of the ledger, or the BLAKE2b-256 digest of a long one.

    A line starts with `{"offset":`, so that it cannot be confused with a digest.
    """
    return line if len(line) <= LONGEST_LINE_BYTES else _digest(line)


def next_link(before: bytes, part: bytes, decision: bytes) -> bytes:
    """Return the chain after a decision; after an event without decisions, where `decision` is empty.

    Args:
        before: the chain so far.
        part: see `chained_part`.
        decision: its bytes up to the chain.
    """
    return _digest(before + part + decision)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHAIN_BYTES).digest()
