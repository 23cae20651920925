"""Writes checkpoints and says what comes of them, beside the training.

It does one thing after another: what is reported is on disk, and reports keep their order.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from executors.lora.task import AdapterState
from executors.lora.trained_adapter import TrainedAdapter
from executors.node.checkpoints import StaleWriterError

_log = logging.getLogger(__name__)


class Keeper:
    """A thread that outlives the tasks of its rank."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keeper")

    def soon(self, action: Callable[[], None]) -> "Future[None]":
        """Have something done after all that was asked for before."""
        return self._thread.submit(action)

    def settle(self) -> None:
        """Wait until all is done that was asked for."""
        self._thread.submit(lambda: None).result()


class TaskKeeper:
    """The part of a keeper's work that is for one task: once something of it fails, the rest is not done.

    Attributes:
        error: what failed; None if nothing has.
        needed_bytes: what the disk refused, where that is what failed.
        is_replaced: whether a later generation has taken the task over, so that nothing may be written.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.error: Exception | None = None
        self.needed_bytes = 0
        self.is_replaced = False

    def soon(self, action: Callable[[], None]) -> None:
        """Have something done, unless something of the task has failed before."""
        self._keeper.soon(lambda: self._do(action))

    def at_last(self, action: Callable[[], None]) -> None:
        """Have something done whatever has failed."""
        self._keeper.soon(action)

    def _do(self, action: Callable[[], None]) -> None:
        if self.error is not None or self.is_replaced:
            return
        try:
            action()
        except StaleWriterError as error:
            _log.info("task replaced: %s", error)
            self.is_replaced = True
        except Exception as error:
            # An error that is not reported, whatever its type, would leave the cell waiting for ever.
            _log.error("task not kept: %s: %s", type(error).__name__, error)
            self.error = error.with_traceback(None)


class LastState:
    """The state of an adapter that is trained no more, copied to the host when it is asked for.

    On a GPU by a stream of its own, beside what the next task computes (pipeline switch, section 6.2).
    """

    def __init__(self, adapter: TrainedAdapter) -> None:
        self._adapter = adapter
        self._trained: torch.cuda.Event | None = None
        self._device = adapter.gradient.device
        if self._device.type == "cuda":
            self._trained = torch.cuda.Event()
            self._trained.record()

    def to_host(self) -> AdapterState:
        """The state in host memory."""
        if self._trained is None:
            return self._adapter.state()
        stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            stream.wait_event(self._trained)
            return self._adapter.state()
