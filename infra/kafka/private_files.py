"""Files that hold secrets."""

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, whole or not at all."""
    staging = path.with_name(f"{path.name}.new")
    staging.unlink(missing_ok=True)
    # Never readable by others, not even between being made and being restricted.
    descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    staging.replace(path)
