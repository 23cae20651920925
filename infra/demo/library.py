"""Tasks cut from the text of Python's standard library: files of one kind are related, others are not."""

import json
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path

_CHARACTERS = 160


def pieces(patterns: Sequence[str], seed: int) -> list[str]:
    """Return pieces of the modules whose paths match, in a seeded order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted({path for pattern in patterns for path in library.glob(pattern)})
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in paths]
    found = [
        text[start : start + _CHARACTERS]
        for text in texts
        for start in range(0, len(text) - _CHARACTERS, _CHARACTERS)
    ]
    random.Random(seed).shuffle(found)
    return found


def write_task(folder: Path, name: str, texts: Sequence[str], held_back: int) -> None:
    """Write a task's data as `name`.jsonl, and the first of its pieces as `name`-validation.jsonl."""
    write_texts(folder / f"{name}-validation.jsonl", texts[:held_back])
    write_texts(folder / f"{name}.jsonl", texts[held_back:])


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """Write a record for each text."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
