"""A node's runners depend on its settings and on the installed packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from executors.lora.slots import LoraSlots
from executors.node.runner import UnfitError, command_types, find_runners
from executors.node.settings import ExecutorSettings
from schemas.lora_commands import RunCancelled, SlotAssigned
from tests.support.counting import Counting
from tests.support.counting_commands import CountCancelled, CountOrdered
from tests.support.entry_points import install_entry_point

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def settings(*runners: str) -> ExecutorSettings:
    return ExecutorSettings(cell="c", node="n1", runners=runners)


def test_runner_is_found_with_its_commands(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DATASET_ROOT", str(site))
    install_entry_point(site, "millrace.runners", "counting", "tests.support.counting:Counting")

    kinds = find_runners(settings("counting", "lora"))

    assert [type(kind) for kind in kinds.values()] == [Counting, LoraSlots]
    assert command_types(kinds) == {
        model.TYPE: model for model in (CountOrdered, CountCancelled, SlotAssigned, RunCancelled)
    }


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, "no runner other is installed (entry points millrace.runners): there is "),
        ("tests.support.nothing:Counting", "runner other: tests.support.nothing:Counting cannot be imported"),
        ("tests.support.counting:Nothing", "runner other: tests.support.counting:Nothing cannot be imported"),
        ("tests.support.counting:Counting", "test.count.cancelled.v1 is for a runner of another name"),
    ],
)
def test_missing_runner_is_named(site: Path, value: str | None, error: str) -> None:
    if value is not None:
        install_entry_point(site, "millrace.runners", "other", value)
    with pytest.raises(UnfitError) as raised:
        find_runners(settings("other"))
    assert error in str(raised.value)


def test_runner_is_found_without_loading() -> None:
    found = "from tests.executors.node.test_runners import *; find_runners(settings('lora'))"
    check = f"{found}; import sys; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "MILLRACE_DATASET_ROOT": "/"}
    subprocess.run([sys.executable, "-c", check], cwd=REPOSITORY, env=environment, check=True, timeout=60)


def test_needs_of_lora_runner_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DATASET_ROOT", str(tmp_path / "none"))
    with pytest.raises(UnfitError, match="is not a folder"):
        find_runners(settings("lora"))
    monkeypatch.setenv("MILLRACE_DATASET_ROOT", str(tmp_path))
    monkeypatch.setenv("MILLRACE_BASE_MODEL_DIR", str(tmp_path))
    with pytest.raises(UnfitError, match="no Hugging Face model directory"):
        find_runners(settings("lora"))
    monkeypatch.setenv("MILLRACE_THREADS", "0")
    with pytest.raises(UnfitError, match="runner lora: settings: MILLRACE_THREADS: Input should be greater"):
        find_runners(settings("lora"))


@pytest.mark.parametrize("runners", [(), ("lora", "lora"), ("a/b",), tuple(f"r{i}" for i in range(17))])
def test_node_has_1_to_16_distinct_runners(runners: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="runners"):
        settings(*runners)
