"""The tiny base model that all tests of executors share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from executors.lora.base_model import SharedBase, load_base
from executors.lora.default_base import default_base_directory
from tests.support.executors import TINY_RECIPE


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return default_base_directory(TINY_RECIPE)


@pytest.fixture(scope="session")
def base(llama_directory: Path) -> SharedBase:
    return load_base(llama_directory)
