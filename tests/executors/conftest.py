"""The tiny base model that all tests of executors share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.lora.base_model import load_base
from executors.lora.shared_base import SharedBase
from executors.processes.threads import one_thread
from tests.support.tiny_base import tiny_base_directory


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base_directory(tmp_path_factory)


@pytest.fixture(scope="session")
def base(llama_directory: Path) -> SharedBase:
    return load_base(llama_directory)
