"""A generation's process group: what its processes do together, at the boundary of a step and in it."""

from dataclasses import astuple, dataclass
from enum import IntEnum

from executors.gang.group import ProcessGroup


class Wish(IntEnum):
    """What a process would have all do next; the highest of all is done."""

    TRAIN = 0
    REGROUP = 1
    """The generation is over; the next one is formed by those that stay."""
    STOP = 2
    """The job stops here, with a checkpoint if it keeps any."""
    DISCARD = 3
    """The job stops here, and nothing is kept."""


@dataclass(frozen=True)
class Signal:
    """What each process tells all others at the boundary of a step."""

    wish: int
    loss_tokens: int
    """Of its share of the next step."""
    saved_samples: int
    """What the newest checkpoint has, as far as it knows: only the leader writes any."""


@dataclass(frozen=True)
class Standing:
    """What each process brings to a new generation."""

    samples_done: int
    """Of the state that it holds; -1 without any."""
    saved_samples: int
    data_digest: int
    """Part of its dataset's digest: all must train on the same."""


class Group(ProcessGroup):
    """The processes of one generation of an elastic job."""

    def exchange(self, signal: Signal) -> list[Signal]:
        """Tell a signal, and return those of all processes by rank.

        Raises:
            PeerLostError: one does not answer.
        """
        return [Signal(*numbers) for numbers in self.gather(astuple(signal))]

    def compare(self, standing: Standing) -> list[Standing]:
        """Tell a standing, and return those of all processes by rank.

        Raises:
            PeerLostError: one does not answer.
        """
        return [Standing(*numbers) for numbers in self.gather(astuple(standing))]
