"""Which sources decide what a run brings: rows of others are not reused."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[3]
DECIDING = (
    "schemas",
    "solvers",
    "streams",
    "infra/simulation",
    "infra/workloads",
    "infra/summary.py",
    "infra/ticks.py",
    "bench/workloads",
    "bench/auction/runs",
    # The versions of all libraries: plans are as good as the solver that finds them.
    "requirements.lock",
)
"""Files, and folders of Python files, from the root of the checkout."""
_DIGEST_BYTES = 8


def digest_of_sources(root: Path = _ROOT) -> str:
    """Of all files that decide, by name and content, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in deciding_files(root):
        for part in (str(path.relative_to(root)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return digest.hexdigest()


def deciding_files(root: Path = _ROOT) -> Iterator[Path]:
    """In a stable order. What is not there, as the lock beside an installed package, is left out."""
    for name in DECIDING:
        path = root / name
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.exists():
            yield path
