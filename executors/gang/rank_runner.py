"""Base of runners whose work is done by ranks, in processes of their own."""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from executors.gang.node import GangNode
from executors.node.room import NoRoomError
from executors.node.runner import Activity, Objection, RunnerContext
from executors.settings import GangSettings

_POLL_S = 0.02

_log = logging.getLogger(__name__)

S = TypeVar("S", bound=GangSettings)


class RankRunner(ABC, Generic[S]):
    """Work of a node that ranks do. See `Runner`."""

    def __init__(self, context: RunnerContext, settings: S, gpus: int) -> None:
        """Start without work."""
        self._context = context
        self._node = GangNode.of(context, settings, gpus)

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no work is left."""

    @abstractmethod
    def advance_ranks(self) -> Iterable[int | None]:
        """Process the ranks' messages, begin and end work, and report.

        Returns:
            for work that is over, the bytes that a disk refused; None if it had room.
        """

    def advance(self) -> Activity:
        """See `Runner`.

        Raises:
            NoRoomError: a disk refused a checkpoint or a result.
        """
        needed_bytes = next((size for size in list(self.advance_ranks()) if size is not None), None)
        if needed_bytes is not None:
            refused = self._context.room.refused(needed_bytes)
            if refused is not None:
                raise NoRoomError(refused, needed_bytes)
        return "idle" if self.is_idle else "waiting"

    def finish_work(self, within_s: float = math.inf) -> None:
        """Advance until no work is left, for a time at most. Checkpoints without room are lost."""
        deadline_s = time.monotonic() + within_s
        while not self.is_idle and time.monotonic() < deadline_s:
            try:
                self.advance()
            except NoRoomError as error:
                _log.error("checkpoint lost node=%s reason=%s", self._node.node, error)
            time.sleep(_POLL_S)


def objection_to_generation(job_ids: Iterable[str], newest: int | None, generation: int) -> Objection | None:
    """Return why a command to ranks of a generation is not to be applied; None if it is.

    Args:
        newest: newest generation of the jobs on the node; None if nothing of them runs there.
    """
    jobs = ", ".join(job_ids)
    if newest is None:
        return Objection("unknown_run", f"nothing of {jobs} runs here")
    return Objection("out_of_date", f"{jobs} is in generation {newest}") if generation < newest else None
