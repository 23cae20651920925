"""What decides the result of a run: a digest tells whether a kept result still holds."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Of the checkout."""

_DIGEST_BYTES = 8


def digest_of(names: Sequence[str], root: Path = ROOT) -> str:
    """Of all these files, by name and content, in hexadecimal.

    Args:
        names: files, and folders of Python files, from the root.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in files_of(names, root):
        for part in (str(path.relative_to(root)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return digest.hexdigest()


def files_of(names: Sequence[str], root: Path = ROOT) -> Iterator[Path]:
    """In a stable order. What is not there, as the lock beside an installed package, is left out."""
    for name in names:
        path = root / name
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.exists():
            yield path
