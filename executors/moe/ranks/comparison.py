"""Whether all ranks of a job have the same, before they begin."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from executors.moe.parallel.micro_ops import DisagreementError


def digests_of(same: Mapping[str, bytes]) -> list[int]:
    """What a rank tells the others of that which all must have.

    Args:
        same: by what it is, in words.
    """
    digests = (blake2b(content, digest_size=7).digest() for content in same.values())
    return [int.from_bytes(digest, "big") for digest in digests]


def compare(same: Mapping[str, bytes], told: Sequence[Sequence[int]]) -> None:
    """See that all have told the same.

    Args:
        told: of each rank, its `digests_of`.

    Raises:
        DisagreementError: a rank has something else than rank 0.
    """
    for place, name in enumerate(same):
        others = [rank for rank, numbers in enumerate(told) if numbers[place] != told[0][place]]
        if others:
            raise DisagreementError(f"{name} of ranks {others} differs from that of rank 0")
