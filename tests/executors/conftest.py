"""The tiny base model that all tests of executors share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from executors.lora.base_model import SharedBase, load_base
from tests.support.tiny_base import tiny_base_directory


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base_directory(tmp_path_factory)


@pytest.fixture(scope="session")
def base(llama_directory: Path) -> SharedBase:
    return load_base(llama_directory)
