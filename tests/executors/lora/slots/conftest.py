"""A clock that a test advances, and nodes without a broker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import TaskState
from executors.lora.shared_base import SharedBase
from executors.lora.slots.checkpoints import AdapterOutput, RunCheckpoints
from executors.lora.slots.runs import task_of
from executors.lora.slots.settings import LoraSettings
from executors.lora.slots.slot_runs import SlotRuns
from executors.lora.slots.workshop import Workshop
from executors.lora.task_files import ADAPTER_TENSORS
from executors.node.room import DiskSpace
from schemas.fleet import FleetEvent
from schemas.lora_commands import RunOrder, SlotAssigned
from tests.support.executors import BASE_MODEL, CELL, write_dataset

SETTINGS = LoraSettings(checkpoint_steps=3)


@dataclass
class ManualClock:
    """Time as the test has it."""

    now_s: float = 1_000.0

    def time_s(self) -> float:
        return self.now_s


@dataclass
class Bench:
    """A shared store, and nodes that come and go on it."""

    base: SharedBase
    root: Path
    clock: ManualClock = field(default_factory=ManualClock)
    reports: list[FleetEvent] = field(default_factory=list)
    settings: LoraSettings = SETTINGS

    @property
    def datasets(self) -> Path:
        return self.root / "datasets"

    def workshop(self, engine: type[FusedEngine] = FusedEngine, **fields: object) -> Workshop:
        """Return what a process begins with: an empty engine, nothing in memory, the store as it is."""
        made = {
            "cell": CELL,
            "base_model": BASE_MODEL,
            "engine": engine(self.base, DatasetRoot(self.datasets)),
            "checkpoints": RunCheckpoints(self.root / "checkpoints", self.base, parked_runs=4),
            "adapters": AdapterOutput(self.root / "adapters", CELL, self.base),
            "settings": self.settings,
            "room": DiskSpace({"state root": self.root, "output root": self.root}, least_free_bytes=0),
            "clock": self.clock,
        }
        return Workshop(**(made | fields))

    def runner(self, assigned: SlotAssigned, workshop: Workshop | None = None) -> SlotRuns:
        return SlotRuns(assigned, (), workshop or self.workshop(), self.reports.append)

    def carry_out(self, assigned: SlotAssigned, workshop: Workshop | None = None) -> SlotRuns:
        """Let a slot run until nothing is left to train."""
        runner = self.runner(assigned, workshop)
        while runner.advance() == "working":
            pass
        return runner

    def reports_on(self, job_id: str) -> list[FleetEvent]:
        """Return the reports on a job."""
        return [event for event in self.reports if event.job_id == job_id]

    def saved(self, job_id: str) -> TaskState:
        """The state in a job's newest checkpoint."""
        checkpoints = RunCheckpoints(self.root / "checkpoints", self.base, parked_runs=0)
        return checkpoints.restore(checkpoints.newest(job_id)).state

    def adapter(self, job_id: str) -> torch.Tensor:
        """The parameters of a finished job, as they were published."""
        checkpoints = RunCheckpoints(self.root / "checkpoints", self.base, parked_runs=0)
        finished = checkpoints.record(checkpoints.newest(job_id))
        tensors = load_file(self.root / "adapters" / finished.adapter.path / ADAPTER_TENSORS)
        named = {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}
        return self.base.layout(finished.task).join(named)

    def kept(self, job_id: str) -> list[str]:
        """Return what the store has of a job."""
        return sorted(path.name for path in (self.root / "checkpoints" / job_id).glob("*"))

    def trained_alone(self, order: RunOrder, samples: int) -> tuple[TaskState, float]:
        """Return the state and the last loss of a job that is not disturbed."""
        engine = FusedEngine(self.base, DatasetRoot(self.datasets))
        engine.attach(task_of(order))
        loss = float("nan")
        while engine.samples_done(order.job_id) < samples:
            loss = engine.step()[order.job_id]
        return engine.detach(order.job_id), loss


@pytest.fixture
def bench(base: SharedBase, tmp_path: Path) -> Bench:
    (tmp_path / "datasets").mkdir()
    write_dataset(tmp_path / "datasets" / "pairs.jsonl")
    return Bench(base, tmp_path)


@pytest.fixture
def assert_same_training() -> Callable[[TaskState, TaskState], None]:
    """Two states of one job, come to in different company: equal but for the rounding of another batch."""

    def check(state: TaskState, expected: TaskState) -> None:
        assert (state.samples_done, state.optimizer_steps, state.cursor) == (
            expected.samples_done,
            expected.optimizer_steps,
            expected.cursor,
        )
        torch.testing.assert_close(state.parameters, expected.parameters, rtol=1e-3, atol=1e-4)

    return check
