"""Writing of checkpoints and reports in a thread parallel to the training.

Actions run one after another: a reported state is on disk, and reports keep their order.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from executors.lora.adapter import TrainedAdapter
from executors.lora.lora_task import AdapterState
from executors.node.checkpoints import StaleWriterError

_log = logging.getLogger(__name__)


class Keeper:
    """A thread that serves all tasks of its rank."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keeper")

    def submit(self, action: Callable[[], None]) -> "Future[None]":
        """Run an action after all actions before it."""
        return self._thread.submit(action)

    def settle(self) -> None:
        """Wait until all actions have run."""
        self._thread.submit(lambda: None).result()


class TaskKeeper:
    """Actions of one task: once one fails, the rest are skipped.

    Attributes:
        error: error of the action that failed; None if none has.
        needed_bytes: bytes that the disk refused, if that is the error.
        is_replaced: whether a later generation runs the task, so that nothing may be written.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.error: Exception | None = None
        self.needed_bytes = 0
        self.is_replaced = False

    def submit(self, action: Callable[[], None]) -> None:
        """Run an action, unless one of the task has failed before."""
        self._keeper.submit(lambda: self._do(action))

    def submit_always(self, action: Callable[[], None]) -> None:
        """Run an action even if one has failed."""
        self._keeper.submit(action)

    def _do(self, action: Callable[[], None]) -> None:
        if self.error is not None or self.is_replaced:
            return
        try:
            action()
        except StaleWriterError as error:
            _log.info("task replaced: %s", error)
            self.is_replaced = True
        except Exception as error:
            # If an error of any type were not reported, the cell would wait forever.
            _log.error("task not kept: %s: %s", type(error).__name__, error)
            self.error = error.with_traceback(None)


class LastState:
    """Final state of an adapter, which is copied to the host on request.

    On a GPU, a stream of its own copies it during the next task's computation (pipeline switch, section 6.2).
    """

    def __init__(self, adapter: TrainedAdapter) -> None:
        self._adapter = adapter
        self._trained: torch.cuda.Event | None = None
        self._device = adapter.gradient.device
        if self._device.type == "cuda":
            self._trained = torch.cuda.Event()
            self._trained.record()

    def to_host(self) -> AdapterState:
        """Return the state in host memory."""
        if self._trained is None:
            return self._adapter.state()
        stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            stream.wait_event(self._trained)
            return self._adapter.state()
