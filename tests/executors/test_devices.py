"""The device of a runner: one setting with one validation for all runners, and the GPUs that it gives."""

import os
from importlib.metadata import entry_points

import pytest
from pydantic import ValidationError

from executors.devices import gpus_of, use_device
from executors.lora.slots.settings import LoraSettings
from executors.moe.settings import MoeSettings
from executors.node.runner import GROUP
from executors.settings import JobSettings, RunnerSettings
from executors.tuner.settings import TunerSettings

RUNNERS: dict[str, type[RunnerSettings]] = {
    "elastic": JobSettings,
    "lora": LoraSettings,
    "moe": MoeSettings,
    "tuner": TunerSettings,
}


def test_every_runner_is_tested() -> None:
    ours = {point.name for point in entry_points(group=GROUP) if point.value.startswith("executors.")}
    assert ours == set(RUNNERS)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_runner_takes_the_same_devices(
    monkeypatch: pytest.MonkeyPatch, runner: str, device: str
) -> None:
    monkeypatch.setenv("MILLRACE_DEVICE", device)
    assert RUNNERS[runner]().device == device


@pytest.mark.parametrize("device", ["abacus", "cuda:", "cuda:x", "cpu:1", "cuda:1:2"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_runner_refuses_the_same_devices(
    monkeypatch: pytest.MonkeyPatch, runner: str, device: str
) -> None:
    monkeypatch.setenv("MILLRACE_DEVICE", device)
    with pytest.raises(ValidationError, match="device"):
        RUNNERS[runner]()


def test_gpus_are_those_that_are_set_or_there() -> None:
    assert gpus_of("cpu", 3, 0) == 3
    assert gpus_of("cpu", None, 8) >= 1
    assert gpus_of("cuda", None, 8) == 8
    assert gpus_of("cuda", 2, 8) == 2
    assert gpus_of("cuda:1", None, 8) == 1
    assert gpus_of("cuda:1", 1, 2) == 1


@pytest.mark.parametrize(
    ("device", "gpus", "error"),
    [
        ("cuda", 4, "4 CUDA devices are requested, the machine has 2"),
        ("cuda:2", None, "there is no cuda:2: the machine has 2 CUDA devices"),
        ("cuda:1", 2, "cuda:1 is one CUDA device, and 2 are requested"),
    ],
)
def test_more_devices_than_there_are_is_an_error(device: str, gpus: int, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        gpus_of(device, gpus, 2)


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda", None, "1"),
        ("cuda", "5,7", "7"),
        ("cuda:0", None, "0"),
        ("cuda:0", "5,7", "5"),
    ],
)
def test_a_process_sees_its_own_device_alone(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str | None, expected: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert use_device(device, gpu=1) == "cuda"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == expected


def test_on_a_cpu_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert use_device("cpu", gpu=1) == "cpu"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
