"""Steps shared by many tasks, in which the failure of one does not affect the others."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from executors.lora.engine import FusedEngine, PartialStepError
from executors.lora.faults import raise_if_device_is_lost
from executors.lora.slots.lone_steps import LoneSteps
from executors.node.runner import Clock
from executors.throttle import throttle
from schemas.lora_commands import MEMORY_TOLERANCE_GIB, RunOrder
from schemas.profiles import MeasuredSteps

Outcome = float | Exception
"""A task's loss in a step, or the reason why it cannot continue."""

_log = logging.getLogger(__name__)


class DivergenceError(ArithmeticError):
    """A task has diverged: its loss or its gradient is not finite, so there is no update."""


class MemoryUnderstatedError(ValueError):
    """A task needs more memory than its user has declared: its next step might exhaust the others' memory."""


class FusedSteps:
    """Advances tasks together. If a shared step fails, each task is stepped alone, so that only the task at
    fault fails. Any exception in a task's data, pass or update is the task's failure, except that of a lost
    device.

    Attributes:
        memory_gib: most memory of a step alone, for each task that had one.
        node_s: device time that each task has used (s), including the time to read and tokenise its batches.
            A task is charged an equal part of a shared step, or its part of the tokens if that is less. If
            the time of a step is the sum of a constant, a time per token and a time per task, it is thus
            charged no more than for a step alone.
    """

    def __init__(
        self,
        engine: FusedEngine,
        clock: Clock,
        orders: Iterable[RunOrder] = (),
        least_sequence_s: float = 0.0,
    ) -> None:
        """Begin without steps.

        The first step of an order with a declared speed runs alone, to be timed. Under a memory limit, a step
        that is larger than all measured ones runs alone as well. The memory of steps alone is always
        measured.

        Args:
            least_sequence_s: shortest time of a sequence of a step (s).
        """
        orders = tuple(orders)
        self._engine = engine
        self._limits_gib = {
            order.job_id: order.memory_limit_gib for order in orders if order.memory_limit_gib is not None
        }
        self._measured_sizes: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.memory_gib: dict[str, float] = {}
        self._untimed = {order.job_id for order in orders if order.speed_is_declared}
        self._clock = clock
        self._least_sequence_s = least_sequence_s
        self._apart = False
        self._was_alone = False
        """Whether the last step measured a single task, while others waited."""
        self.node_s: defaultdict[str, float] = defaultdict(float)
        self._alone = {order.job_id: LoneSteps(order.hyperparameters.batch_size) for order in orders}

    def pop_measured(self, job_id: str) -> MeasuredSteps | None:
        """Return the task's steps alone since the last call; None if there were none."""
        alone = self._alone.get(job_id)
        return None if alone is None else alone.pop(self._engine.precision)

    def step(self, job_ids: Sequence[str]) -> Mapping[str, Outcome]:
        """Advance each task by one micro-batch, or only one that is timed or measured alone. A task that
        fails has no update.

        Raises:
            torch.AcceleratorError: the device is lost.
        """
        untimed = [job_id for job_id in job_ids if job_id in self._untimed]
        if untimed:
            # The caller checks the time between two of them.
            self._untimed.remove(untimed[0])
            return {untimed[0]: self._step_alone(untimed[0])}
        measured = [
            job_id for job_id in job_ids if job_id not in self._limits_gib or self._is_within_measure(job_id)
        ]
        self._was_alone = len(measured) < len(job_ids) and not (measured and self._was_alone)
        if self._was_alone:
            # Tasks alternate, so that none delays the others by ever larger steps.
            waiting = [job_id for job_id in job_ids if job_id not in measured]
            chosen = min(waiting, key=lambda job_id: len(self._measured_sizes[job_id]))
            return {chosen: self._step_alone(chosen)}
        return self._step_together(measured)

    def _step_together(self, job_ids: Sequence[str]) -> Mapping[str, Outcome]:
        failed = self._unreadable(job_ids)
        ready = [job_id for job_id in job_ids if job_id not in failed]
        if len(ready) > 1 and not self._apart:
            return failed | self._step_ready_together(ready)
        return failed | {job_id: self._step_alone(job_id) for job_id in ready}

    def _unreadable(self, job_ids: Sequence[str]) -> dict[str, Outcome]:
        """Return the errors of tasks with unfit data, by job. The other tasks continue together."""
        failed: dict[str, Outcome] = {}
        for job_id in job_ids:
            try:
                self._upcoming_size(job_id)
            except Exception as error:
                failed[job_id] = error.with_traceback(None)
        return failed

    def _upcoming_size(self, job_id: str) -> tuple[int, int]:
        """Return `FusedEngine.upcoming_size`, and charge the task for the time to read its data."""
        start_s = self._clock.time_s()
        try:
            return self._engine.upcoming_size(job_id)
        finally:
            self.node_s[job_id] += self._since(start_s)

    def _step_ready_together(self, job_ids: Sequence[str]) -> dict[str, Outcome]:
        try:
            losses = self._timed_step(job_ids)
        except PartialStepError as error:
            return {**error.faults, **self._all_checked(error.losses)}
        except Exception as error:
            raise_if_device_is_lost(error)
            _log.warning("step failed jobs=%s error=%r; each runs alone", ",".join(job_ids), error)
        else:
            return self._all_checked(losses)
        outcomes = {job_id: self._step_alone(job_id) for job_id in job_ids}
        # No task is at fault, but all together are too large for the device.
        self._apart = not any(isinstance(outcome, Exception) for outcome in outcomes.values())
        return outcomes

    def _is_within_measure(self, job_id: str) -> bool:
        """Return whether a task's next step is no larger than a measured one."""
        try:
            tokens, loss_rows = self._upcoming_size(job_id)
        except Exception:
            # Alone, it fails again, without effect on the others.
            return False
        return any(tokens <= t and loss_rows <= rows for t, rows in self._measured_sizes[job_id])

    def _step_alone(self, job_id: str) -> Outcome:
        try:
            if self._is_within_measure(job_id):
                return self._checked(job_id, self._timed_step([job_id])[job_id])
            return self._checked(job_id, self._measured_step(job_id))
        except PartialStepError as error:
            return error.faults[job_id]
        except Exception as error:
            raise_if_device_is_lost(error)
            return error.with_traceback(None)

    def _measured_step(self, job_id: str) -> float:
        """Run a task's step alone. It fails if it runs out of memory or exceeds its limit.

        Raises:
            MemoryUnderstatedError: it needed more than its limit.
        """
        size = self._upcoming_size(job_id)
        failure: Exception | None = None
        loss = math.nan
        with self._engine.measured(job_id) as used:
            try:
                loss = self._timed_step([job_id])[job_id]
            except Exception as error:
                raise_if_device_is_lost(error)
                failure = error.with_traceback(None)
        self.memory_gib[job_id] = max(used.gib, self.memory_gib.get(job_id, 0.0))
        limit_gib = self._limits_gib.get(job_id, math.inf)
        if used.gib > limit_gib + MEMORY_TOLERANCE_GIB:
            raise MemoryUnderstatedError(
                f"memory_understated: a step took {used.gib:.6g} GiB, and {limit_gib:.6g} GiB are reserved"
            ) from failure
        if failure is not None:
            raise failure
        self._measured_sizes[job_id].append(size)
        return loss

    def _timed_step(self, job_ids: Sequence[str]) -> Mapping[str, float]:
        start_s, began_s, before = self._clock.time_s(), time.monotonic(), self._samples_done(job_ids)
        try:
            losses = self._engine.step(job_ids)
        except PartialStepError:
            self._account(start_s, job_ids)
            raise
        throttle(began_s, self._samples_done(job_ids) - before, self._least_sequence_s)
        self._account(start_s, job_ids)
        return losses

    def _samples_done(self, job_ids: Sequence[str]) -> int:
        return sum(self._engine.samples_done(job_id) for job_id in job_ids)

    def _account(self, start_s: float, job_ids: Sequence[str]) -> None:
        """Divide the time of a step among its tasks."""
        duration_s = self._since(start_s)
        if len(job_ids) == 1 and job_ids[0] in self._alone:
            (job_id,) = job_ids
            self._alone[job_id].add(
                duration_s, self._engine.step_tokens(job_id), self._engine.samples_done(job_id)
            )
        tokens = {job_id: self._engine.step_tokens(job_id) for job_id in job_ids}
        for job_id in job_ids:
            self.node_s[job_id] += duration_s * min(tokens[job_id] / sum(tokens.values()), 1 / len(tokens))

    def _since(self, start_s: float) -> float:
        # The machine's clock may be set back meanwhile.
        return max(self._clock.time_s() - start_s, 0.0)

    def _all_checked(self, losses: Mapping[str, float]) -> dict[str, Outcome]:
        return {job_id: self._checked(job_id, loss) for job_id, loss in losses.items()}

    def _checked(self, job_id: str, loss: float) -> Outcome:
        """Return the loss, or an error if it or the gradient is not finite: such a task would use up its
        samples without updates."""
        for name, value in (("loss", loss), ("gradient's norm", self._engine.gradient_norm(job_id))):
            if not math.isfinite(value):
                return DivergenceError(f"the {name} is {value}: the training diverged")
        return loss
