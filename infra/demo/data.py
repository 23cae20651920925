"""Data of the demo's jobs, cut from the text of Python's standard library; and bids to try after the demo."""

import ast
import json
import random
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.deployment.deployment_folders import Folders
from infra.errors import disk_faults
from schemas.lora import Dataset

_CHARACTERS = 160


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
_BIDS = """\
# For the cell that `millrace up` runs by default: the first is worth its price, the second is not.
- cell: home
  job_id: my-first-adapter    # leave it out, and each submission is a job of its own
  user: me
  zone: tiny
  workload:
    kind: lora
    work_samples: 240
    dataset: {{path: {path}, samples: {samples}}}    # in {folder}
    hyperparameters: {{rank: 8, batch_size: 4, sequence_length: 64, learning_rate: 0.005}}
  terms: {{kind: bid, bid: 100, deadline_in_s: 900}}
- cell: home
  job_id: too-cheap
  user: me
  zone: tiny
  workload:
    kind: lora
    work_samples: 240
    dataset: {{path: {path}, samples: {samples}}}
    hyperparameters: {{rank: 8, batch_size: 4, sequence_length: 64}}
  terms: {{kind: bid, bid: 0.001, deadline_in_s: 900}}
"""


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
    """Write the first `held_back` texts as `name`-validation.jsonl, and the others as `name`.jsonl."""
    write_records(folder / f"{name}-validation.jsonl", texts[:held_back])
    write_records(folder / f"{name}.jsonl", texts[held_back:])


def write_records(path: Path, texts: Sequence[str]) -> None:
    """Write a record for each text."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def write_datasets(root: Path, seed: int) -> tuple[Dataset, ...]:
    """Write one JSONL file per subject below `root`: some functions and classes of its modules."""
    modules_root = Path(sysconfig.get_paths()["stdlib"])
    datasets = []
    for subject, modules in sorted(_MODULES.items()):
        texts = [text for module in modules for text in _definitions(modules_root / f"{module}.py")]
        texts = random.Random(f"{seed}/{subject}").sample(texts, min(_RECORDS, len(texts)))
        path = root / f"{subject}.jsonl"
        write_records(path, texts)
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


def write_next_steps(demo: Folders, dataset: Dataset, home: Folders) -> Path:
    """Write a file of bids into the folder of the demo, and return its path.

    Args:
        demo: Folders of the demo, which have the dataset.
        dataset: Data that the bids train on; it is copied to the datasets of `millrace up`.
        home: Folders of `millrace up`.

    Raises:
        CommandError: a file cannot be written.
    """
    with disk_faults(home.root):
        home.datasets.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo.datasets / dataset.path, home.datasets / dataset.path)
        bids = demo.root / "bids.yaml"
        bids.write_text(
            _BIDS.format(path=dataset.path, samples=dataset.samples, folder=home.datasets), encoding="utf-8"
        )
    return bids
