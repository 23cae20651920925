"""Which sources decide what a run brings: rows of others are not reused."""

import hashlib
from pathlib import Path

_ROOT = Path(__file__).parents[3]
DECIDING = ("schemas", "solvers", "streams", "infra/simulation", "bench/workloads", "bench/auction/runs")
_DIGEST_BYTES = 8


def digest_of_sources() -> str:
    """Of all Python files of the packages that decide, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for folder in DECIDING:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(_ROOT)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
