"""Data of the demo's bids: functions and classes of Python's standard library, a dataset per subject."""

import ast
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from infra.demo.library import write_texts
from schemas.lora import Dataset

_SHORTEST = 80
_LONGEST = 400
_RECORDS = 24
"""Records of a dataset: few, so that a short training has several epochs and the loss falls."""
_MODULES = {
    "language": ("ast", "dis", "inspect", "tokenize", "typing"),
    "data": ("collections/__init__", "dataclasses", "enum", "json/decoder", "statistics"),
    "files": ("pathlib", "shutil", "tarfile", "tempfile", "zipfile"),
    "network": ("ftplib", "http/client", "smtplib", "socketserver", "ssl"),
    "processes": ("asyncio/base_events", "queue", "subprocess", "threading", "concurrent/futures/thread"),
    "text": ("argparse", "difflib", "string", "textwrap", "configparser"),
}


def write_datasets(root: Path, seed: int) -> tuple[Dataset, ...]:
    """Write one JSONL file per subject below `root`: some functions and classes of its modules."""
    modules_root = Path(sysconfig.get_paths()["stdlib"])
    datasets = []
    for subject, modules in sorted(_MODULES.items()):
        texts = [text for module in modules for text in _definitions(modules_root / f"{module}.py")]
        texts = random.Random(f"{seed}/{subject}").sample(texts, min(_RECORDS, len(texts)))
        path = root / f"{subject}.jsonl"
        write_texts(path, texts)
        datasets.append(Dataset(path=path.name, samples=len(texts)))
    return tuple(datasets)


def _definitions(path: Path) -> Iterator[str]:
    if not path.is_file():
        return
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = "".join(lines[node.lineno - 1 : node.end_lineno])
            if len(text) >= _SHORTEST:
                yield text[:_LONGEST]
