"""A policy that is not in the product, installed separately, decides and is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.round_robin import install

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_installed_policy_needs_no_change_of_product(tmp_path: Path) -> None:
    """The cases run in a process of their own: what is installed is known from a process's start."""
    path = os.pathsep.join([str(install(tmp_path)), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/round_robin/cases.py"]
    found = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout
    assert " passed" in found.stdout or "[100%]" in found.stdout


def test_page_shows_code_unchanged() -> None:
    pages = [ROOT / "docs" / "adding-a-policy.md", *(ROOT / "docs" / "adding-a-policy").glob("*.md")]
    shown = [
        block for page in pages for block in re.findall(r"```python\n(.*?)\n```", page.read_text(), re.DOTALL)
    ]
    sources = [
        *(ROOT / "tests" / "round_robin").glob("*.py"),
        ROOT / "tests" / "support" / "counting_commands.py",
    ]
    code = [source.read_text() for source in sources]
    assert len(shown) > 12
    assert [block for block in shown if not any(block in text for text in code)] == []
