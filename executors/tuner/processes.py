"""The worker processes of a node, which outlive the tasks that they are given."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from executors.node.runner import LoadingInterruptedError, UnfitError
from executors.processes import forked_process
from executors.processes.forked_process import ForkedProcess, exit_status
from executors.tuner.messages import (
    WORDS,
    Halt,
    Over,
    Place,
    Prewarm,
    ProfilePart,
    Ready,
    Switched,
    TaskPart,
    Told,
    Unfit,
)

_WORKER = "executors.tuner.worker"
_INDEXER = "executors.tuner.indexing"
_POLL_S = 0.02

_log = logging.getLogger(__name__)


def warm_up() -> int:
    """Start the fork server and wait until it has imported; return how many CUDA devices there are."""
    return forked_process.warm_up(_WORKER)


@dataclass
class Bench:
    """One worker process, and the parts that it was told, in their order."""

    gpu: int
    process: ForkedProcess[Ready | Unfit | Told | Switched | Over]
    parts: list[int] = field(default_factory=list)
    is_ready: bool = False


class Workers:
    """A node's worker processes, one for each GPU. One that has died is started again."""

    def __init__(self, place: Place, gpus: int) -> None:
        """Start them; `place` says where they are, of its GPU each has another."""
        self._place = place
        self._halts: list[Halt] = []
        self._were_ready = False
        self._indexer = self._start_indexer()
        self.benches = [self._start(gpu) for gpu in range(gpus)]

    def await_ready(self) -> None:
        """Wait until all have the base model.

        Raises:
            UnfitError: one cannot load it.
            LoadingInterruptedError: one has been killed meanwhile.
        """
        while not all(bench.is_ready for bench in self.benches):
            for _, _ in self.words():
                raise AssertionError("a worker without a part has nothing to tell")
            for bench in self.benches:
                if not bench.is_ready and not bench.process.is_alive:
                    raise _lost_while_loading(bench)
            time.sleep(_POLL_S)
        self._were_ready = True

    def words(self) -> Iterator[tuple[Bench, Told | Switched | Over]]:
        """Yield the workers' messages about their parts.

        Raises:
            UnfitError: one cannot load the base model.
            LoadingInterruptedError: one that has been started again cannot load it.
        """
        for bench in self.benches:
            for word in bench.process.messages():
                if isinstance(word, Ready):
                    bench.is_ready = True
                elif isinstance(word, Unfit):
                    error = f"base_model_dir: {word.error}"
                    raise LoadingInterruptedError(error) if self._were_ready else UnfitError(error)
                else:
                    yield bench, word

    def bury(self) -> Iterator[tuple[int, str]]:
        """Start those again that have died, and return how each ended, by the parts that it had.

        Raises:
            LoadingInterruptedError: one has died before it had the base model.
        """
        for index, bench in enumerate(self.benches):
            if bench.process.is_alive:
                continue
            if not bench.is_ready:
                raise _lost_while_loading(bench)
            status = exit_status(bench.process.exit_code)
            _log.warning("worker process has ended gpu=%d with %s; it is started again", bench.gpu, status)
            bench.process.close()
            self.benches[index] = self._start(bench.gpu)
            for part in bench.parts:
                yield part, status

    def prewarm(self, prewarm: Prewarm) -> None:
        """Have the data of a job checked, for whichever of them it will be on."""
        if not self._indexer.is_alive:
            self._indexer.close()
            self._indexer = self._start_indexer()
        self._indexer.send(prewarm)

    @staticmethod
    def give(bench: Bench, part: TaskPart | ProfilePart) -> None:
        """Have a worker do a part, after those that it has."""
        bench.parts.append(part.part)
        bench.process.send(part)

    def halt(self, halt: Halt) -> None:
        """Have those that do a part end it, by `send_halts`."""
        self._halts.append(halt)

    def send_halts(self) -> None:
        """Tell them. What is to follow was given before, so that it can be prepared while they train on."""
        for halt in self._halts:
            for bench in self.benches:
                if halt.part in bench.parts:
                    bench.process.send(halt)
        self._halts.clear()

    def kill(self) -> None:
        """Have all end at once."""
        self._indexer.kill()
        for bench in self.benches:
            bench.process.kill()

    @property
    def pids(self) -> list[int]:
        """Process ids."""
        return [bench.process.pid for bench in self.benches]

    def _start_indexer(self) -> ForkedProcess[Ready | Unfit | Told | Switched | Over]:
        return ForkedProcess(f"{_INDEXER}:run_indexer", self._place, WORDS, "tuner-indexer")

    def _start(self, gpu: int) -> Bench:
        place = self._place.model_copy(update={"gpu": gpu})
        return Bench(gpu, ForkedProcess(f"{_WORKER}:run_worker", place, WORDS, f"tuner-{gpu}"))


def _lost_while_loading(bench: Bench) -> LoadingInterruptedError:
    status = exit_status(bench.process.exit_code)
    return LoadingInterruptedError(f"a worker has ended with {status} and no word while it loaded its model")
