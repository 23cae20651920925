"""The runner `moe` is installed, and refuses early what cannot work."""

from pathlib import Path

import pytest

from executors.node.runner import UnfitError, find_runners
from executors.node.settings import ExecutorSettings
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased

NODE = ExecutorSettings(cell="c", node="n1", runners=("moe",))


def test_the_runner_obeys_commands_for_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLRACE_MODEL_ROOT", str(tmp_path))
    monkeypatch.setenv("MILLRACE_DATASET_ROOT", str(tmp_path))
    (kind,) = find_runners(NODE).values()
    assert set(kind.commands) == {RanksAssigned, ExpertsPlaced, RanksReleased}


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("MILLRACE_DATASET_ROOT", "/nowhere", "dataset root /nowhere is not a folder"),
        ("MILLRACE_MODEL_ROOT", "/nowhere", "model root /nowhere is not a folder"),
        ("MILLRACE_RANK_HOST", "192.0.2.1", "no network interface here has the address 192.0.2.1"),
        ("MILLRACE_PEER_TIMEOUT_S", "0", "MILLRACE_PEER_TIMEOUT_S: "),
        ("MILLRACE_EXPERT_MEMORY_GIB", "0", "MILLRACE_EXPERT_MEMORY_GIB: "),
    ],
)
def test_impossible_assignment_is_refused_before_loading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, error: str
) -> None:
    monkeypatch.setenv("MILLRACE_MODEL_ROOT", str(tmp_path))
    monkeypatch.setenv("MILLRACE_DATASET_ROOT", str(tmp_path))
    monkeypatch.setenv(name, value)
    with pytest.raises(UnfitError, match=error):
        find_runners(NODE)
