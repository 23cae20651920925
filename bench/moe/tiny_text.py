"""Real text that everybody has: the modules of Python's standard library, documented as they are."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data"}
"""Folders with little prose, or with tables."""
_HELD_BACK_EVERY = 8
"""One document in so many is not trained on."""
_LEAST_BYTES = 2_000


class Text:
    """Documents that are trained on, and others that are held back to be served."""

    def __init__(self, seed: int) -> None:
        documents = list(_documents())
        order = np.random.default_rng(seed).permutation(len(documents))
        held_back = [documents[place] for place in order[::_HELD_BACK_EVERY]]
        trained = [documents[place] for rank, place in enumerate(order) if rank % _HELD_BACK_EVERY]
        self.trained = _joined(trained)
        self.held_back = _joined(held_back)


def passages(text: Tensor, count: int, length: int, draws: torch.Generator) -> Tensor:
    """(count, length) int64, from places that are drawn."""
    starts = torch.randint(len(text) - length, (count, 1), generator=draws)
    return text[starts + torch.arange(length)].long()


def _documents() -> Iterator[bytes]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(root).parts) and path.stat().st_size >= _LEAST_BYTES:
            yield path.read_bytes()


def _joined(documents: list[bytes]) -> Tensor:
    return torch.frombuffer(bytearray(b"\n".join(documents)), dtype=torch.uint8)
