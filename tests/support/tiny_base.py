"""The tiny base model, trained once for all processes of a test run."""

import os
from pathlib import Path

import pytest

from executors.lora.default_base import default_base_directory
from tests.support.executors import TINY_RECIPE


def tiny_base_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model's directory; the first process that needs it trains it, and others wait for that."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_CACHE_DIR", str(root / "tiny-base"))
        return default_base_directory(TINY_RECIPE)
