"""Prewarming on a signal, for a run outside the executor, which gets no commands (Ymir, section 6.2)."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from executors.tuner.data import PreparedLoaders
from schemas.merging.workload import TuningWorkload


def prewarm_on_signal(
    loaders: PreparedLoaders,
    next_job: Callable[[], TuningWorkload | None],
    keep_s: float = 60.0,
    number: signal.Signals = signal.SIGUSR1,
) -> Callable[[], None]:
    """Install a signal handler that prepares the data loader of the next job in the background, as
    `LoaderPrewarmed` does on a node. Call it in the main thread; the training continues meanwhile, and the
    job gets the loader by `loaders.take`.

    Args:
        next_job: returns the job of the loader; None without a next job.
        keep_s: time after which an unused loader is dropped (s).
        number: the signal.

    Returns:
        a function that restores the previous handler.
    """

    def prepare() -> None:
        workload = next_job()
        if workload is not None:
            loaders.prepare(workload, time.time() + keep_s)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # In a thread: the main thread may hold the loaders' lock when the signal arrives.
        threading.Thread(target=prepare, name="prewarm-signal", daemon=True).start()

    before = signal.signal(number, on_signal)

    def restore() -> None:
        signal.signal(number, before)

    return restore
