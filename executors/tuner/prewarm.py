"""Prewarming for a run outside the executor, which gets no commands: on a signal (Ymir, section 6.2)."""

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
    """Have a signal prepare the data loader of the next job in the background, as `LoaderPrewarmed` does on a
    node. Called in the main thread; the training goes on meanwhile, and the job takes what is ready by
    `loaders.take`.

    Args:
        next_job: whose loader; None if there is none.
        keep_s: the loader is given up if nobody has taken it for so long.
        number: the signal.

    Returns:
        puts the handler back that was there before.
    """

    def prepare() -> None:
        workload = next_job()
        if workload is not None:
            loaders.prepare(workload, time.time() + keep_s)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # In a thread: the signal may have come while the main thread holds the loaders' lock.
        threading.Thread(target=prepare, name="prewarm-signal", daemon=True).start()

    before = signal.signal(number, on_signal)

    def restore() -> None:
        signal.signal(number, before)

    return restore
