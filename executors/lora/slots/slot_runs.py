"""One slot on one node: its runs, from their orders to their last reports. Does not use a broker."""

import logging
from collections.abc import Callable, Collection
from typing import Literal, TypeVar

from executors.lora.delivered import DataDifferError
from executors.lora.faults import UpdateError, described, is_permanent, raise_if_device_is_lost
from executors.lora.slots.checkpoints import FinishedRun, RunProgress, SavedRun
from executors.lora.slots.runs import SlotRun, task_of
from executors.lora.slots.steps import FusedSteps
from executors.lora.slots.workshop import Workshop
from executors.node.checkpoints import Checkpoint, StaleWriterError
from executors.node.places import result_path
from executors.node.room import NoRoomError
from executors.node.run_reports import RunReports
from executors.node.runner import Activity
from schemas.fleet import FleetEvent, RunProgressed, RunStarted
from schemas.lora_commands import RunOrder, SlotAssigned

EndReason = Literal["quota", "slot_end", "newer_slot", "node_stops", "no_room"]
"""Reason of the end of a run's part of a slot."""

_CHECKPOINT_POLL_S = 0.25
_MOST_WAITED = 0.25
"""Share of its slot that a run waits at most. A lost predecessor never writes its reported checkpoint: a run
that waited for the whole slot would wait again in the next one, and never train."""
_PUBLISHING_SLOTS = 1
"""Slots after its own in which a run may still publish. Later, the cell counts the slot as lost, and has
planned the job again or ended it."""
_RECENT_SLOTS = 2
"""Slots during which a cancellation may arrive for a job that was finished in the first of them."""

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class SlotRuns:
    """Carries out an assignment, step by step, and reports its results.

    A run waits for its predecessor's checkpoint, trains, and is over; one that fails, is cancelled or is
    replaced is over at once, without effect on the others.

    Attributes:
        assignment: the assignment.
        over: jobs whose part of this slot is over and reported.
    """

    def __init__(
        self,
        assignment: SlotAssigned,
        over: Collection[str],
        workshop: Workshop,
        report: Callable[[FleetEvent], None],
    ) -> None:
        """Accept an assignment, except for the jobs that are over; start nothing before `advance`."""
        self.assignment = assignment
        self.over = set(over)
        self._workshop = workshop
        self._clock = workshop.clock
        self._reports = {
            order.job_id: RunReports(workshop.cell, assignment.node, order, report)
            for order in assignment.runs
        }
        self._steps = FusedSteps(
            workshop.engine, workshop.clock, assignment.runs, workshop.settings.least_sequence_s
        )
        self._waiting = {order.job_id: order for order in assignment.runs if order.job_id not in self.over}
        self._training: dict[str, SlotRun] = {}
        self._has_room = False
        now_s = self._clock.time_s()
        slot_s = assignment.slot_end_s - assignment.slot_start_s
        self._wait_until_s = now_s + min(workshop.settings.checkpoint_wait_s, _MOST_WAITED * slot_s)
        self._next_look_s = now_s
        self._next_progress_s = now_s + workshop.settings.progress_s

    def advance(self) -> Activity:
        """Begin the runs that can begin, run one step of all that train, and save checkpoints that are due.

        Raises:
            NoRoomError: the runs' state cannot be written; they are unchanged.
            torch.AcceleratorError: the device is lost.
        """
        if self._clock.time_s() >= self.assignment.slot_end_s:
            self.close("slot_end")
        # Not after the step: cancellations that arrive during it are processed before this.
        for run in [run for run in self._training.values() if run.samples_done >= run.goal_samples]:
            self._end_part(run, "quota")
        self._begin_runs()
        if self._training:
            self._step()
            self._save_and_report()
        if self._training:
            return "working"
        return "waiting" if self._waiting else "idle"

    def cancel(self, job_id: str) -> None:
        """Stop a job that is over for its user, without a report; remove its files, including an adapter that
        was published after its end."""
        if job_id in self._training or job_id in self._waiting:
            self._drop(job_id)
            self._reports[job_id].log("run cancelled")
        self._withdraw_adapter(job_id)
        self._workshop.checkpoints.remove(job_id)

    def disown(self, run_id: str, job_id: str) -> None:
        """End a run that the cell does not have: it writes and publishes nothing more."""
        run = self._training.get(job_id)
        order = self._waiting.get(job_id) if run is None else run.order
        if order is None or order.run_id != run_id:
            return
        self._workshop.checkpoints.forget(job_id)
        self._drop(job_id)
        self._reports[job_id].log("run disowned")
        if run is not None:
            self._report_progress(run, complete=True)

    def _withdraw_adapter(self, job_id: str) -> None:
        newest = self._workshop.checkpoints.newest(job_id)
        if newest is None or newest.token < self.assignment.slot - _RECENT_SLOTS:
            return
        try:
            finished = self._workshop.checkpoints.record(newest)
        except ValueError:
            return
        if finished is not None:
            self._workshop.adapters.withdraw(finished.adapter)
            _log.info("adapter withdrawn job=%s", job_id)

    def close(self, reason: EndReason) -> None:
        """End every run at its position: checkpointed, then reported.

        That includes training in the slot by a process before this one, which could not report it.

        Raises:
            NoRoomError: a run's state cannot be written; it and those after it are unchanged.
        """
        for order in list(self._waiting.values()):
            newest = self._workshop.checkpoints.newest(order.job_id)
            if newest is not None and newest.token == self.assignment.slot:
                self._begin(order, newest)
            elif reason in ("slot_end", "newer_slot"):
                known_samples = order.resume_samples if newest is None else newest.samples_done
                self._fail(
                    order.job_id, known_samples, TimeoutError("the slot was over before the run began")
                )
            else:  # the node goes offline, and the cell plans all of it again
                self._reports[order.job_id].log("run never began", reason=reason)
        self._waiting.clear()
        for run in list(self._training.values()):
            self._end_part(run, reason)

    def give_up(self) -> None:
        """End every run at its position, without a report if it cannot be checkpointed."""
        for run in list(self._training.values()):
            try:
                self._end_part(run, "no_room")
            except NoRoomError:
                self._drop(run.job_id)
                self._reports[run.job_id].log("run lost since its checkpoint", samples_done=run.saved_samples)
        self._waiting.clear()
        self.over.update(order.job_id for order in self.assignment.runs)

    # Beginning

    def _begin_runs(self) -> None:
        now_s = self._clock.time_s()
        if not self._waiting or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _CHECKPOINT_POLL_S
        if not self._has_room:
            self._refuse_too_little_room()
        for order in list(self._waiting.values()):
            newest = self._workshop.checkpoints.newest(order.job_id)
            if newest is not None and newest.token > self.assignment.slot:
                self._drop(order.job_id)
                self._reports[order.job_id].log("run replaced", newest_slot=newest.token)
            elif now_s >= self._wait_until_s or not self._is_behind(order, newest):
                self._begin(order, newest)

    def _refuse_too_little_room(self) -> None:
        """Begin no run that could not be checkpointed."""
        needed_bytes = sum(self._checkpoint_bytes(order) for order in self._waiting.values())
        lacking = self._workshop.room.lacking(needed_bytes)
        if lacking is not None:
            raise NoRoomError(f"{lacking} for {len(self._waiting)} runs", needed_bytes)
        self._has_room = True

    def _checkpoint_bytes(self, order: RunOrder) -> int:
        try:
            return self._workshop.checkpoints.bytes_of(task_of(order))
        except Exception:
            # It fails when it begins.
            return 0

    def _is_behind(self, order: RunOrder, newest: Checkpoint | None) -> bool:
        """Return whether a predecessor has a later state than `newest`; states of this slot are this
        node's."""
        if newest is None:
            return order.resume_samples > 0
        return newest.token < self.assignment.slot and newest.samples_done < order.resume_samples

    def _begin(self, order: RunOrder, newest: Checkpoint | None) -> None:
        job_id = order.job_id
        known_samples = order.resume_samples if newest is None else newest.samples_done
        try:
            finished = None if newest is None else self._finished_before(order, newest)
            run = self._attach(order, newest) if finished is None else None
        except Exception as error:
            raise_if_device_is_lost(error)
            self._fail(job_id, known_samples, error.with_traceback(None))
            return
        if finished is not None:
            self._reports[job_id].report(RunStarted, finished.samples_done, dataset_samples=None)
            self._end_finished(finished)
        elif run is not None:
            self._start(run)

    def _start(self, run: SlotRun) -> None:
        order, job_id = run.order, run.job_id
        del self._waiting[job_id]
        self._training[job_id] = run
        if run.samples_done < order.resume_samples:
            self._reports[job_id].log(
                "run behind",
                level=logging.WARNING,
                samples_done=run.samples_done,
                resume_samples=order.resume_samples,
            )
        self._reports[job_id].log("run started", samples_done=run.samples_done, goal_samples=run.goal_samples)
        dataset_samples = self._workshop.engine.dataset_records(job_id)
        self._reports[job_id].report(RunStarted, run.samples_done, dataset_samples=dataset_samples)
        if run.samples_done >= run.goal_samples:
            self._end_part(run, "quota")

    def _finished_before(self, order: RunOrder, newest: Checkpoint) -> FinishedRun | None:
        """Return the record of a job that was finished by a process which could not report it."""
        path = result_path(self._workshop.cell, order.user, order.job_id)
        finished = self._workshop.checkpoints.record_of(newest, task_of(order), path)
        if finished is not None:
            # Remove the remains of a crash.
            self._workshop.checkpoints.finish(finished)
        return finished

    def _attach(self, order: RunOrder, newest: Checkpoint | None) -> SlotRun:
        held, needed = self._workshop.base_model, self.assignment.base_model
        if held != needed:
            raise RuntimeError(f"the node holds base model {held}, not {needed}")
        task = task_of(order)
        saved = None if newest is None else self._workshop.checkpoints.restore(newest)
        self._workshop.engine.attach(
            task, None if saved is None else saved.state, order.delivery, order.source
        )
        samples_done = base_samples = self._workshop.engine.samples_done(order.job_id)
        if saved is not None and saved.slot == self.assignment.slot:
            # The slot began before this process did.
            base_samples = saved.progress.base_samples
        return SlotRun(
            order=order,
            goal_samples=min(base_samples + order.quota_samples, order.work_samples),
            samples_done=samples_done,
            saved_samples=samples_done,
            base_samples=base_samples,
            loss=None if saved is None else saved.progress.loss,
            saved_s=self._clock.time_s(),
        )

    # Training

    def _step(self) -> None:
        for job_id, outcome in self._steps.step(tuple(self._training)).items():
            run = self._training[job_id]
            if isinstance(outcome, Exception):
                self._fail_training(run, outcome)
                continue
            run.advance(self._workshop.engine.samples_done(job_id), outcome)

    def _save_and_report(self) -> None:
        now_s = self._clock.time_s()
        settings = self._workshop.settings
        for run in list(self._training.values()):
            if run.unsaved_steps and (
                run.unsaved_steps >= settings.checkpoint_steps or now_s >= run.saved_s + settings.checkpoint_s
            ):
                self._save(run)
        if now_s >= self._next_progress_s:
            self._next_progress_s = now_s + settings.progress_s
            for run in self._training.values():
                self._report_progress(run, complete=False)

    def _save(self, run: SlotRun) -> SavedRun | None:
        """Checkpoint a run; None if it is over, see `_kept`."""

        def save() -> SavedRun:
            saved = self._capture(run)
            self._workshop.checkpoints.save(saved)
            return saved

        saved = self._kept(run, save)
        if saved is None:
            return None
        run.mark_saved(self._clock.time_s())
        self._reports[run.job_id].log("run checkpointed", samples_done=run.samples_done, loss=run.loss)
        return saved

    def _kept(self, run: SlotRun, work: Callable[[], _T]) -> _T | None:
        """Call a function that writes state of a run; None if the run is over, since it was replaced or the
        write failed.

        Raises:
            NoRoomError: the disk is at fault.
            torch.AcceleratorError: the device is lost.
        """
        try:
            return work()
        except StaleWriterError as error:
            self._drop(run.job_id)
            self._reports[run.job_id].log("run replaced", error=error)
        except OSError as error:
            self._give_way(run, error)
        except Exception as error:
            raise_if_device_is_lost(error)
            self._fail(run.job_id, run.saved_samples, error.with_traceback(None))
        return None

    def _give_way(self, run: SlotRun, error: OSError) -> None:
        """Fail a run whose files cannot be written, unless files of other runs cannot be written either.

        Raises:
            NoRoomError: the disk is at fault.
        """
        needed_bytes = self._checkpoint_bytes(run.order)
        refused = self._workshop.room.refused(needed_bytes)
        if refused is not None:
            raise NoRoomError(refused, needed_bytes) from error
        self._fail(run.job_id, run.saved_samples, error)

    def _capture(self, run: SlotRun) -> SavedRun:
        state = self._workshop.engine.state(run.job_id)
        progress = RunProgress(base_samples=run.base_samples, loss=run.loss)
        return SavedRun(self.assignment.slot, state, progress)

    # Ending

    def _end_part(self, run: SlotRun, reason: EndReason) -> None:
        """Checkpoint, then report: finished if the work is done, and else complete for this slot."""
        if run.loss is None:
            # It ended before its very first step: there is no state.
            if reason in ("slot_end", "newer_slot"):
                self._fail(run.job_id, 0, TimeoutError("the slot was over before the run's first step"))
                return
            self._drop(run.job_id)
            self._reports[run.job_id].log("run stopped", reason=reason, samples_done=0)
            return
        saved = self._save(run) if run.unsaved_steps else self._kept(run, lambda: self._capture(run))
        if saved is None:
            return
        if run.samples_done >= run.order.work_samples and self._may_publish():
            self._finish(run, saved, run.loss)
            return
        self._drop(run.job_id)
        self._workshop.checkpoints.park(saved)
        self._report_progress(run, complete=True)
        self._reports[run.job_id].log(
            "run stopped", reason=reason, samples_done=run.samples_done, loss=run.loss
        )

    def _may_publish(self) -> bool:
        """Return whether the cell still waits for this slot; later, only a run of a later slot may
        publish."""
        length_s = self.assignment.slot_end_s - self.assignment.slot_start_s
        return self._clock.time_s() < self.assignment.slot_end_s + _PUBLISHING_SLOTS * length_s

    def _finish(self, run: SlotRun, saved: SavedRun, loss: float) -> None:
        """Write the adapter, remove the checkpoints, report.

        In this order: the job's record has all that the report needs, so any later node of the job can repair
        a crash in between.
        """

        def finish() -> FinishedRun:
            finished = FinishedRun(
                task=saved.state.task,
                slot=saved.slot,
                samples_done=run.samples_done,
                loss=loss,
                adapter=self._workshop.adapters.publish(saved.state, run.order.user),
            )
            self._workshop.checkpoints.finish(finished)
            return finished

        finished = self._kept(run, finish)
        if finished is not None:
            self._end_finished(finished)

    def _end_finished(self, finished: FinishedRun) -> None:
        self._drop(finished.task.job_id)
        adapter = finished.adapter
        self._reports[finished.task.job_id].finished(
            finished.samples_done, finished.loss, adapter.path, adapter.digest
        )

    def _fail_training(self, run: SlotRun, error: Exception) -> None:
        """Fail a run; one that may continue on another node is checkpointed."""
        is_whole = not isinstance(error, UpdateError)
        if is_whole and not is_permanent(error) and run.unsaved_steps and self._save(run) is None:
            return
        self._fail(run.job_id, run.saved_samples, error)

    def _fail(self, job_id: str, samples_done: int, error: BaseException) -> None:
        self._workshop.checkpoints.forget(job_id)
        self._drop(job_id)
        self._reports[job_id].failed(
            samples_done,
            described(error),
            is_permanent(error),
            cause="data_differ" if isinstance(error, DataDifferError) else None,
            memory_gib=self._steps.memory_gib.get(job_id),
        )

    def _drop(self, job_id: str) -> None:
        """Remove a job from the device; its part of the slot is over."""
        self._waiting.pop(job_id, None)
        self._training.pop(job_id, None)
        self._workshop.engine.discard(job_id)
        self.over.add(job_id)

    def _report_progress(self, run: SlotRun, complete: bool) -> None:
        """Report the progress of a run, if it has done a step."""
        job_id, measured = run.job_id, self._steps.pop_measured(run.job_id)
        if run.loss is not None:
            self._reports[job_id].report(
                RunProgressed,
                run.samples_done,
                loss=run.loss,
                node_s=self._steps.node_s[job_id],
                memory_gib=self._steps.memory_gib.get(job_id),
                measured=measured,
                complete=complete,
            )
