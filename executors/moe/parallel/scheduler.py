"""The thread that issues a process's collectives, one after another, in the order that all ranks share."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from executors.gang.group import DisagreementError
from executors.gang.meeting import CollectiveLostError
from executors.moe.parallel.expert_groups import Lanes
from executors.moe.parallel.micro_ops import (
    CollectiveKind,
    DeviceTimes,
    MicroOpRecord,
    MicroOpRecording,
    Pending,
)

_SLICE_S = 0.1
"""Interval at which the thread checks for the loss of another rank (s)."""
_GRACE_S = 0.5
"""Extra time for the order to report a late rank first (s)."""
_NOT_YET = "Operation timed out"

_log = logging.getLogger(__name__)


class Order:
    """Order in which the micro-ops of the two kinds are issued. Within a kind, it is that of submission.

    By default, methods do nothing.
    """

    def submitted(self, kind: CollectiveKind, label: str) -> None:
        """Record a new micro-op of this rank. May be called by any thread."""

    def expected(self, count: int) -> None:
        """Record the number of all-to-all micro-ops that this rank will soon submit. May be called by any
        thread."""

    def next(self, wait_s: float) -> CollectiveKind | None:
        """Return the kind to issue next; None if it is not decided after the wait."""

    def check(self) -> None:
        """Raise an error if the run of all ranks is over."""

    def finished(self, kind: CollectiveKind) -> None:
        """Record the end of a micro-op on this rank."""

    def failed(self, reason: str) -> None:
        """Record the failure of this rank."""

    def close(self) -> None:
        """Close the order: no more micro-ops follow."""


class Communication(Protocol):
    """Issues a process's collectives."""

    def all_to_all(
        self,
        received: Tensor,
        sent: Tensor,
        received_splits: Sequence[int],
        sent_splits: Sequence[int],
        lanes: Lanes,
        label: str,
    ) -> Pending:
        """Exchange rows with the ranks of a group."""

    def allreduce(
        self, tensor: Tensor, group: ProcessGroup, label: str, through: torch.device | None = None
    ) -> Pending:
        """Add a tensor up over the ranks of a group, in place."""

    @property
    def error(self) -> Exception | None:
        """Error after which no more collectives are issued; None without one."""

    def expect_all_to_alls(self, count: int) -> None:
        """Announce that a number of all-to-all micro-ops follows soon."""

    def close(self) -> None:
        """Issue no more collectives."""


@contextmanager
def failures_named(communication: Communication) -> Iterator[None]:
    """Raise the communication's own error for a failed step. DistributedDataParallel hides the reason of a
    failed collective in its own error. It also has collectives of its own, for instance in its second forward
    pass. After the loss of a rank, these fail only at the timeout of its process group.

    Raises:
        CollectiveLostError, DisagreementError: replaces the error that was raised.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        # Gloo's errors have no type of their own.
        if communication.error is None and not isinstance(error, dist.DistError) and "gloo" not in reason:
            raise
    else:
        return
    cause = communication.error or CollectiveLostError(
        f"a collective has failed: another rank is gone or stopped: {reason}"
    )
    raise type(cause)(str(cause))


@dataclass(eq=False)
class _MicroOp:
    """A part of a collective.

    Attributes:
        label: its name; the same on all ranks.
        ready: on a CUDA device, event of the end of the computation of its input.
        size_bytes: tokens that this rank sends, or gradients that it adds up.
        start: issues it.
        finish: called at its end; on a CUDA device, after its submission to the device.
        recording: receives its record at its end.
    """

    kind: CollectiveKind
    label: str
    size_bytes: int
    start: Callable[[], list[Work]]
    finish: Callable[[], None]
    submitted_s: float
    ready: torch.cuda.Event | None = None
    recording: MicroOpRecording | None = None
    pending: Pending = field(default_factory=Pending)


class CommunicationScheduler:
    """Issues the collectives of one process (thesis, section 4.4.2 and 4.6.1).

    All ranks run the same program, so the submissions of each kind have the same order on all; an `Order`
    determines how the two interleave, so all collectives may share a communicator (erratum I3). On CPUs, one
    micro-op runs at a time. On CUDA devices, the thread submits them to the device, each to run after the one
    before, without waiting itself, so the order must be a `PlannedOrder`.

    After a failure on any rank, each waiting call on every rank raises within `timeout_s` and a second. The
    end of a rank is detected at once, and a stopped or late rank after that time.
    """

    def __init__(
        self, order: Order, rank: int, timeout_s: float, trace: list[MicroOpRecord] | None = None
    ) -> None:
        """Start the thread.

        Args:
            timeout_s: most time of a collective after its issue.
            trace: receives the record of each micro-op at its end.
        """
        self._order = order
        self._rank = rank
        self._timeout_s = timeout_s
        self._trace = trace
        self._recording: MicroOpRecording | None = None
        self._queues: dict[CollectiveKind, deque[_MicroOp]] = {kind: deque() for kind in CollectiveKind}
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._is_closing = False
        self._stream: torch.cuda.Stream | None = None
        self._thread = threading.Thread(target=self._run, name="collectives", daemon=True)
        self._thread.start()

    def all_to_all(
        self,
        received: Tensor,
        sent: Tensor,
        received_splits: Sequence[int],
        sent_splits: Sequence[int],
        lanes: Lanes,
        label: str,
    ) -> Pending:
        """Exchange rows with the ranks of a group, as `torch.distributed.all_to_all_single` does.

        Both tensors are in use until it has ended.
        """

        def start() -> list[Work]:
            return lanes.exchange(received, sent, received_splits, sent_splits)

        return self._submit(CollectiveKind.ALL_TO_ALL, sent, start, label, sent.device)

    def allreduce(
        self, tensor: Tensor, group: ProcessGroup, label: str, through: torch.device | None = None
    ) -> Pending:
        """Add a tensor up over the ranks of a group, in place. It is in use until that has ended.

        The label, with the tensor's size, must be the same on all ranks.

        Args:
            through: device of the group's sums, if the tensor is in other memory: it is copied there when its
                turn comes, and back.
        """
        staged = tensor

        def start() -> list[Work]:
            nonlocal staged
            if through is not None:
                staged = tensor.to(through, copy=True)
            work = dist.all_reduce(staged, group=group, async_op=True)
            assert work is not None, "this process is in the group"
            return [work]

        def finish() -> None:
            nonlocal staged
            if through is not None:
                tensor.copy_(staged)
                staged = tensor

        label = f"{label}, {tensor.numel()} x {tensor.dtype}"
        return self._submit(CollectiveKind.ALLREDUCE, tensor, start, label, through or tensor.device, finish)

    @property
    def error(self) -> Exception | None:
        """Error after which no more collectives are issued; None without one."""
        return self._error

    def expect_all_to_alls(self, count: int) -> None:
        """Delay further allreduce micro-ops until `count` more all-to-all micro-ops have been submitted and
        have ended: an allreduce would delay them, since they follow soon."""
        self._order.expected(count)

    @contextmanager
    def recording(self, device: torch.device) -> Iterator[MicroOpRecording]:
        """Record the micro-ops that are submitted in the block, which begins and ends while none runs."""
        self._recording = MicroOpRecording(device)
        try:
            yield self._recording
        finally:
            self._recording = None

    def close(self) -> None:
        """End the thread. Pending micro-ops fail."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        self._order.close()

    def _submit(
        self,
        kind: CollectiveKind,
        tensor: Tensor,
        start: Callable[[], list[Work]],
        label: str,
        device: torch.device,
        finish: Callable[[], None] = lambda: None,
    ) -> Pending:
        ready, recording = None, self._recording
        if device.type == "cuda":
            ready = torch.cuda.Event(enable_timing=recording is not None)
            ready.record()
        size_bytes = tensor.numel() * tensor.element_size()
        op = _MicroOp(kind, label, size_bytes, start, finish, time.monotonic(), ready, recording)
        with self._changed:
            if self._error is not None:
                op.pending.settle(self._error)
                return op.pending
            self._queues[kind].append(op)
            self._order.submitted(kind, label)
            self._changed.notify_all()
        return op.pending

    def _run(self) -> None:
        error: Exception = CollectiveLostError("the scheduler was closed")
        try:
            quiet_since_s = time.monotonic()
            while not self._is_closing:
                kind = self._order.next(_SLICE_S)
                if kind is None:
                    self._check_wait(quiet_since_s)
                    continue
                op = self._next_op(kind)
                if op is None:
                    break
                self._carry_out(op)
                quiet_since_s = time.monotonic()
        except (CollectiveLostError, DisagreementError) as lost:
            error = lost
        except Exception as unforeseen:
            _log.exception("rank %d issues no more collectives", self._rank)
            error = CollectiveLostError(f"rank {self._rank} issues no more collectives: {unforeseen}")
        if not self._is_closing:
            self._order.failed(str(error))
        with self._changed:
            self._error = error
            left = [op for queue in self._queues.values() for op in queue]
            self._queues = {kind: deque() for kind in CollectiveKind}
        for op in left:
            op.pending.settle(error)

    def _check_wait(self, quiet_since_s: float) -> None:
        with self._changed:
            queued = [queue[0] for queue in self._queues.values() if queue]
        for op in queued:
            waited_s = time.monotonic() - max(op.submitted_s, quiet_since_s)
            if waited_s > self._timeout_s + _GRACE_S:
                raise CollectiveLostError(
                    f"rank {self._rank}: {op.kind} {op.label} has waited {waited_s:.1f} s for its turn: "
                    "rank 0, which decides, is stopped or cut off, or the plan is that of another step"
                )

    def _next_op(self, kind: CollectiveKind) -> _MicroOp | None:
        """Return the next micro-op of a kind, which stays queued; wait for it, since another rank may have
        submitted it first."""
        with self._changed:
            while not self._queues[kind]:
                if self._is_closing:
                    return None
                self._changed.wait(_SLICE_S)
                self._order.check()
            return self._queues[kind][0]

    def _carry_out(self, op: _MicroOp) -> None:
        issued_s = time.monotonic()
        times = None
        try:
            if op.ready is not None:
                times = self._hand_over(op, op.ready)
            else:
                for work in op.start():
                    self._wait(work, op, issued_s)
                op.finish()
        except (CollectiveLostError, DisagreementError):
            raise
        except RuntimeError as error:
            self._raise_reported()
            reason = str(error).strip().partition("\n")[0]
            raise CollectiveLostError(
                f"rank {self._rank}: {op.kind} {op.label} has failed: another rank is gone or stopped: "
                f"{reason}"
            ) from None
        completed_s = time.monotonic()
        with self._changed:
            self._queues[op.kind].popleft()
        self._order.finished(op.kind)
        op.pending.duration_s = completed_s - issued_s
        record = MicroOpRecord(
            *(self._rank, op.kind, op.label, op.size_bytes),
            *(op.submitted_s, issued_s, completed_s),
        )
        if self._trace is not None:
            self._trace.append(record)
        if op.recording is not None:
            op.recording.add(record, times)
        with torch.cuda.stream(self._stream):  # a future that is set by it then belongs to the stream
            op.pending.settle(None, None if times is None else times.ended)

    def _hand_over(self, op: _MicroOp, ready: torch.cuda.Event) -> DeviceTimes:
        # A stream of this thread's own: the training's would wait for each allreduce.
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            started, ended = (torch.cuda.Event(enable_timing=op.recording is not None) for _ in range(2))
            started.record(self._stream)
            for work in op.start():
                work.wait()
            op.finish()
            ended.record(self._stream)
        return DeviceTimes(ready, started, ended)

    def _raise_reported(self) -> None:
        """Raise the error that another rank reports for a failed collective, since this rank detects only the
        failure."""
        for _ in range(5):
            self._order.check()
            time.sleep(_SLICE_S)

    def _wait(self, work: Work, op: _MicroOp, issued_s: float) -> None:
        while True:
            try:
                work.wait(timedelta(seconds=_SLICE_S))
                return
            except RuntimeError as error:
                if _NOT_YET not in str(error):
                    raise
            self._order.check()
            if time.monotonic() - issued_s > self._timeout_s + _GRACE_S:
                raise CollectiveLostError(
                    f"rank {self._rank}: {op.kind} {op.label} has not ended within {self._timeout_s:g} s: "
                    "another rank is stopped or cut off"
                )
