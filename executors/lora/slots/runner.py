"""The runner `lora` on a node: one slot at a time, in the order of the cell's commands."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from pydantic import JsonValue
from transformers.utils.logging import disable_progress_bar

from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine, keep_freed_memory
from executors.lora.slots.calendar import SlotCalendar
from executors.lora.slots.checkpoints import AdapterOutput, RunCheckpoints
from executors.lora.slots.settings import LoraSettings
from executors.lora.slots.slot_runs import SlotRuns
from executors.lora.slots.workshop import Workshop
from executors.node.places import checkpoint_root
from executors.node.runner import Activity, CloseReason, DeviceLostError, Objection, RunnerContext
from schemas.base import Record
from schemas.commands import Command
from schemas.fleet import FleetEvent
from schemas.lora_commands import RunCancelled, SlotAssigned

_log = logging.getLogger(__name__)


class _State(Record):
    """The runner's part of the journal."""

    assignment: SlotAssigned
    """Last slot that began."""
    over: tuple[str, ...]
    """Jobs whose part of it is over and reported."""


def load_workshop(context: RunnerContext, settings: LoraSettings) -> Workshop:
    """Load the base model and create an engine on it.

    Raises:
        BaseModelError: the directory has no base model that the engine can use.
        OSError: a folder cannot be read.
        RuntimeError: torch has no such device, or the model does not fit on it.
    """
    node = context.settings
    keep_freed_memory()
    # The log has lines only.
    disable_progress_bar()
    torch.set_num_threads(settings.threads)
    address = settings.base_model_address or node.base_model
    base = load_base(settings.base_model_dir, settings.device, address)
    return Workshop(
        cell=node.cell,
        base_model=node.base_model,
        engine=FusedEngine(base, DatasetRoot(settings.dataset_root)),
        checkpoints=RunCheckpoints(checkpoint_root(node.state_root, node.cell), base, settings.parked_runs),
        adapters=AdapterOutput(node.output_root, node.cell, base),
        settings=settings,
        room=context.room,
        clock=context.clock,
    )


class LoraRunner:
    """See `Runner`."""

    def __init__(self, workshop: Workshop, report: Callable[[FleetEvent], None]) -> None:
        self._workshop = workshop
        self._report = report
        self._calendar = SlotCalendar()
        self._slot: SlotRuns | None = None
        self._assignment: JsonValue = None
        """The assignment as in the journal, encoded once, since it may be large."""

    def validate(self, command: Command) -> Objection | None:
        """Check that a slot is the cell's, and newer than the present one; a cancellation is never late."""
        if isinstance(command, SlotAssigned):
            present = None if self._slot is None else self._slot.assignment
            if present == command:
                return None  # the order is a duplicate
            return self._calendar.objection(command, present, self._workshop.clock.time_s())
        return None

    def apply(self, command: Command) -> None:
        """Begin a slot, which ends the one before it, or cancel a job."""
        with _device_loss_reported():
            if isinstance(command, SlotAssigned):
                if self._slot is not None and self._slot.assignment == command:
                    return
                if self._slot is not None:
                    self._slot.close("newer_slot")
                jobs = ",".join(run.job_id for run in command.runs)
                _log.info("slot begun slot=%d runs=%s", command.slot, jobs)
                self._begin(command, ())
            elif isinstance(command, RunCancelled):
                self._cancel(command.job_id)

    def disown(self, run_id: str, job_id: str) -> None:
        """Remove a run from the device without a checkpoint."""
        if self._slot is not None:
            with _device_loss_reported():
                self._slot.disown(run_id, job_id)

    def held_runs(self) -> list[str]:
        """Return the runs of the slot that are not over."""
        if self._slot is None:
            return []
        runs = self._slot.assignment.runs
        return [order.run_id for order in runs if order.job_id not in self._slot.over]

    def advance(self) -> Activity:
        """Run a step of every run of the slot."""
        if self._slot is None:
            return "idle"
        with _device_loss_reported():
            return self._slot.advance()

    def close(self, reason: CloseReason) -> None:
        """Checkpoint and report every run of the slot; without room, drop state that cannot be kept."""
        if self._slot is not None:
            with _device_loss_reported():
                if reason == "no_room":
                    self._slot.give_up()
                else:
                    self._slot.close(reason)

    def state(self) -> JsonValue:
        """Return the slot and its jobs that are over."""
        if self._slot is None:
            return None
        over: list[JsonValue] = [*sorted(self._slot.over)]
        return {"assignment": self._assignment, "over": over}

    def restore(self, state: JsonValue) -> None:
        """Continue the slot of the process before this one, or only report what that could not."""
        restored = _State.model_validate_json(json.dumps(state))
        _log.info("slot resumed slot=%d over=%s", restored.assignment.slot, ",".join(restored.over))
        self._begin(restored.assignment, restored.over)

    def _begin(self, assignment: SlotAssigned, over: tuple[str, ...]) -> None:
        self._assignment = assignment.model_dump(mode="json")
        self._slot = SlotRuns(assignment, over, self._workshop, self._report)

    def _cancel(self, job_id: str) -> None:
        if self._slot is None:
            self._workshop.checkpoints.remove(job_id)
        else:
            self._slot.cancel(job_id)


@contextmanager
def _device_loss_reported() -> Iterator[None]:
    try:
        yield
    except torch.AcceleratorError as error:
        raise DeviceLostError(str(error)) from error
