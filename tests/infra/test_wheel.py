"""The wheel: its files, and its commands in a folder with files that are named like modules."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.wheel import PACKAGES, ROOT, HostileFolder, build_wheel, install_wheel


@pytest.fixture(scope="module")
def millrace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def hostile(tmp_path: Path) -> HostileFolder:
    return HostileFolder(tmp_path / "hostile")


def test_wheel_has_exactly_the_package_files(tmp_path):
    with ZipFile(build_wheel(tmp_path)) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    assert inside == {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert {f"{package}/py.typed" for package in PACKAGES} <= inside


@pytest.mark.slow
def test_the_folder_is_hostile(hostile, millrace):
    refused = hostile.run(millrace.with_name("python"), "-m", "infra.cli", "--help")
    assert refused.returncode == 1
    assert hostile.imported


@pytest.mark.slow
def test_the_environment_runs_the_wheel(hostile, millrace):
    where = hostile.run(millrace.with_name("python"), "-P", "-c", "import infra; print(infra.__file__)")
    assert where.stdout.startswith(str(millrace.parents[1]))


COMMANDS = {
    "help": (["--help"], "simulate"),
    "schemas are checked": (["schemas", "check"], "the documents are those of the models"),
    "a cell is simulated": (
        ["simulate", "--cells", str(ROOT / "infra" / "cells" / "elastic.yaml"), "--jobs", "4", "--json"],
        '"admitted": 4',
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_imports_nothing_from_the_folder(hostile, millrace, arguments, message):
    done = hostile.run(millrace, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert message in done.stdout
    assert hostile.imported == []
