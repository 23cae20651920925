"""A runner of slots that trains nothing: it validates commands and keeps a journal like the runner `lora`."""

import json
from collections.abc import Callable
from typing import Any

from pydantic import JsonValue

from executors.lora.slots.calendar import SlotCalendar
from executors.node.runner import Activity, CloseReason, Objection
from schemas.commands import Command
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.lora_commands import RunCancelled, RunOrder, SlotAssigned
from tests.support.disturbed.light_processes import Machine

PROGRESS_S = 3.0


class LightSlots:
    """See `Runner`, and `executors.lora.slots.runner.LoraRunner`."""

    def __init__(self, machine: Machine, report: Callable[[Any], None]) -> None:
        self._machine = machine
        self._report = report
        self._calendar = SlotCalendar()
        self._slot: SlotAssigned | None = None
        self._over: set[str] = set()
        self._started: dict[str, float] = {}
        self._reported_s: dict[str, float] = {}

    def validate(self, command: Command) -> Objection | None:
        if not isinstance(command, SlotAssigned) or command == self._slot:
            return None
        return self._calendar.objection(command, self._slot, self._machine.time_s)

    def apply(self, command: Command) -> None:
        if isinstance(command, SlotAssigned) and command != self._slot:
            self._end_all()
            self._slot, self._over, self._started, self._reported_s = command, set(), {}, {}
        elif isinstance(command, RunCancelled):
            self._over.add(command.job_id)

    def disown(self, run_id: str, job_id: str) -> None:
        for order in self._left():
            if (order.run_id, order.job_id) == (run_id, job_id):
                self._end(order)

    def held_runs(self) -> list[str]:
        return [order.run_id for order in self._left()]

    def advance(self) -> Activity:
        slot, now_s = self._slot, self._machine.time_s
        if slot is None:
            return "idle"
        if now_s >= slot.slot_end_s:
            self._end_all()
        for order in self._left():
            self._train(order, now_s - slot.slot_start_s, slot.slot_end_s - slot.slot_start_s)
        return "waiting" if self._left() else "idle"

    def close(self, reason: CloseReason) -> None:
        self._end_all()

    def state(self) -> JsonValue:
        if self._slot is None:
            return None
        return {"slot": self._slot.model_dump(mode="json"), "over": sorted(self._over)}

    def restore(self, state: Any) -> None:
        self._slot = SlotAssigned.model_validate_json(json.dumps(state["slot"]))
        self._over = set(state["over"])

    def _left(self) -> list[RunOrder]:
        runs = () if self._slot is None else self._slot.runs
        return [order for order in runs if order.job_id not in self._over]

    def _train(self, order: RunOrder, ran_s: float, slot_s: float) -> None:
        job_id, now_s = order.job_id, self._machine.time_s
        done = self._machine.done.setdefault(job_id, 0.0)
        if job_id not in self._started:
            self._started[job_id], self._reported_s[job_id] = done, now_s
            self._report(RunStarted(**self._place(order), samples_done=int(done)))
        trained = order.quota_samples * min(max(ran_s / (slot_s - 1), 0.0), 1.0)
        self._machine.done[job_id] = min(max(done, self._started[job_id] + trained), order.work_samples)
        if self._machine.done[job_id] >= order.work_samples:
            self._over.add(job_id)
            self._report(
                RunFinished(
                    **self._place(order),
                    samples_done=order.work_samples,
                    adapter_path=f"c/{job_id}",
                    adapter_digest="0" * 64,
                )
            )
        elif now_s - self._reported_s[job_id] >= PROGRESS_S:
            self._reported_s[job_id] = now_s
            self._progressed(order, complete=False)

    def _end_all(self) -> None:
        for order in self._left():
            self._end(order)

    def _end(self, order: RunOrder) -> None:
        self._over.add(order.job_id)
        if order.job_id in self._started:
            self._progressed(order, complete=True)

    def _progressed(self, order: RunOrder, complete: bool) -> None:
        done = int(self._machine.done.get(order.job_id, 0.0))
        self._report(
            RunProgressed(**self._place(order), samples_done=done, loss=1.0, node_s=0.0, complete=complete)
        )

    def _place(self, order: RunOrder) -> dict[str, Any]:
        assert self._slot is not None
        node = self._slot.node
        return {"cell": "c", "node": node, "run_id": order.run_id, "job_id": order.job_id}
