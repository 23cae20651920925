"""Processes that import nothing from the folder in which they are started."""

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.interpreters import python_command
from tests.support.wheel import PACKAGES, ROOT, HostileFolder

FAMILY = """
import multiprocessing
from schemas.interpreters import isolate_children

def child():
    import schemas, token

if __name__ == "__main__":
    isolate_children()
    for method in ("spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0, method
"""


@pytest.fixture
def hostile(tmp_path: Path) -> HostileFolder:
    return HostileFolder(tmp_path / "hostile")


def test_an_interpreter_imports_our_packages_and_the_library(hostile):
    done = hostile.run(*python_command("-c", "import schemas, token; print(schemas.__file__)"))
    assert done.stdout.strip() == str(ROOT / "schemas" / "__init__.py")
    assert hostile.imported == []


def test_a_process_of_multiprocessing_is_isolated(hostile, tmp_path):
    program = tmp_path / "family.py"
    program.write_text(FAMILY)
    done = hostile.run(sys.executable, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert hostile.imported == []


def test_no_other_place_starts_an_interpreter():
    found = subprocess.run(
        ["grep", "-rl", "--include=*.py", "sys.executable", *PACKAGES],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["schemas/interpreters.py"]
