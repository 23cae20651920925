"""Work during the training: a thread, and on CUDA also a stream of its own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


class Sideline:
    """Runs actions one after another while the calling thread trains.

    On a CPU, torch's copies and products in the thread run parallel to those of the training, since they
    release the interpreter. On CUDA, the copies have a stream of their own, so that the device's copy engines
    work while its processors compute.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        # A new thread has torch's default number of CPU threads, and sums may depend on that number.
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix=name,
            initializer=torch.set_num_threads,
            initargs=(torch.get_num_threads(),),
        )
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, action: Callable[[], Result]) -> "Future[Result]":
        """Run an action after all device work that the calling thread has submitted so far. The result is
        complete only after all device work of the action."""
        stream = self._stream
        if stream is None:
            return self._executor.submit(action)
        before = torch.cuda.current_stream(stream.device).record_event()

        def run() -> Result:
            with torch.cuda.stream(stream):
                stream.wait_event(before)
                result = action()
            stream.synchronize()
            return result

        return self._executor.submit(run)

    def close(self) -> None:
        """Drop actions that have not begun. An action that has begun ends by itself, at the latest when its
        peers are gone."""
        self._executor.shutdown(wait=False, cancel_futures=True)
