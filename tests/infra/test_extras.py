"""Commands without millrace's extras work, or name the missing package."""

import json
import re
from pathlib import Path

import pytest

from schemas.errors import libraries_of_extras, missing_extra
from tests.support.wheel import ROOT, HostileFolder, install_wheel

CELLS = ROOT / "infra" / "cells"


@pytest.fixture(scope="module")
def millrace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_wheel(tmp_path_factory.mktemp("wheel"), extras=False)


@pytest.fixture
def folder(tmp_path: Path) -> HostileFolder:
    return HostileFolder(
        tmp_path / "hostile",
        MILLRACE_DATA_DIR=str(tmp_path / "data"),
        MILLRACE_DATASET_ROOT=str(tmp_path),
        MILLRACE_CELL="c",
        MILLRACE_NODE="n",
    )


@pytest.mark.long
def test_ledger_commands_work_without_extras(millrace, folder):
    arguments = ["--cells", str(CELLS / "elastic.yaml"), "--jobs", "4", "--out", "simulated", "--json"]
    simulated = folder.run(millrace, "simulate", *arguments)
    assert json.loads(simulated.stdout)["admitted"] == 4, simulated.stderr
    replayed = folder.run(millrace, "replay", "--from", "simulated/ledger.jsonl")
    assert "every decision follows from the ledger" in replayed.stdout + replayed.stderr
    watched = folder.run(millrace, "watch", "--from", "simulated/ledger.jsonl")
    assert (watched.returncode, watched.stderr) == (0, "")


WITHOUT = {
    "a solve in a simulation": (
        ["simulate", "--cells", str(CELLS / "merging.yaml"), "--jobs", "4"],
        "extra `solver`",
    ),
    "a deployment": (["up", str(CELLS / "merging.yaml"), "--no-executors"], "extra `worker`"),
    "a deployment's executors": (["up"], "extra `executors`"),
    "a demo": (["demo"], "extra `worker`"),
    "a worker": (["worker", str(CELLS / "default.yaml")], "extra `worker`"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), WITHOUT.values(), ids=WITHOUT.keys())
def test_command_names_missing_extra(millrace, folder, arguments, message):
    done = folder.run(millrace, *arguments)
    assert done.returncode == 1
    # A command that reports its progress also reports a long import.
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("millrace: loading"))
    assert message in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "extra"),
    [("streams.worker", "worker"), ("streams.solver", "solver"), ("executors.node", "executors")],
)
def test_a_service_that_lacks_its_extra_is_unfit(millrace, folder, module, extra):
    done = folder.run(millrace.with_name("python"), "-P", "-m", module)
    assert done.returncode == 2
    assert f"with its extra `{extra}`" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "extra"),
    [("faust.app", "worker"), ("torch", "executors"), ("matplotlib.pyplot", "bench"), ("pyomo", "solver")],
)
def test_a_module_is_of_an_extra(module, extra):
    assert f"with its extra `{extra}`" in str(missing_extra(ModuleNotFoundError(name=module)))


def test_other_modules_are_of_no_extra():
    assert missing_extra(ModuleNotFoundError(name="yaml")) is None


def test_the_readme_lists_the_extras():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert set(libraries_of_extras()) <= set(rows)
