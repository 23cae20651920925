"""Work beside the training: a thread, and on CUDA also a stream of its own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


class Sideline:
    """Runs actions one after another while the calling thread trains on.

    On a CPU the thread alone has torch's copies and products run beside those of the training, since they
    release the interpreter. On CUDA the copies go through a stream of their own, so that the device's copy
    engines work while its processors compute.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        # A new thread has torch's default of CPU threads, and sums may depend on how many there are.
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix=name,
            initializer=torch.set_num_threads,
            initargs=(torch.get_num_threads(),),
        )
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, action: Callable[[], Result]) -> "Future[Result]":
        """Have an action run after all that the calling thread has asked of the device so far. When its
        result is there, so is all that it asked of the device."""
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
        """Drop what has not begun. What has begun ends by itself, at the latest when its peers are gone."""
        self._executor.shutdown(wait=False, cancel_futures=True)
