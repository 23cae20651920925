"""Decisions of a gang policy outside the product."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_gang import install

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_cases_of_the_small_gang_policy_pass(tmp_path: Path) -> None:
    """Its cases have a process of their own, because a process installs policies once, at its start."""
    path = os.pathsep.join([str(install(tmp_path)), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/small_gang/cases.py"]
    found = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout
