"""Bounded collections of measured steps: those of runs, and those of profilers."""

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, Self

from schemas.profiles import MeasuredSteps

OTHERS_AT_LEAST = 3
"""Users whose runs must agree before they count for another user: one of three cannot move the median beyond
the measurements of the others."""
_WRITERS_AT_LEAST = 8
"""Users that share the store: in a full one, a user with more than this part of it displaces itself."""
PROFILERS_APART = 15
"""Profilers with a part of the published readings of their own; all later ones share another part."""
MOST_GPU_S = 3_600.0
"""Most GPU time of a reading that keeps it in a full store (s)."""


class StepSetting(NamedTuple):
    """A configuration in which a step was measured."""

    gpu_type: str
    micro_batch_size: int
    gpus: int = 1
    nodes: int = 1


class Reading(NamedTuple):
    """A running mean of the steps of one writer in one configuration; see `ProfilePoint`."""

    step_s: float
    steps: int
    tokens_per_sample: float | None
    """None if not measured."""
    exchange_s: float = 0.0
    memory_gib: float | None = None
    """Largest of all reports; None if never measured."""
    loader_s: float | None = None

    @classmethod
    def of(cls, steps: MeasuredSteps, memory_gib: float | None = None) -> Self:
        """Return the reading of a run's steps, for one pass per GPU; see `ProfilePoint`."""
        return cls(
            step_s=(steps.step_s - steps.exchange_s) / steps.passes + steps.exchange_s,
            steps=steps.steps,
            tokens_per_sample=steps.tokens_per_sample,
            exchange_s=steps.exchange_s,
            memory_gib=memory_gib,
            loader_s=None if steps.loader_s is None else steps.loader_s / steps.passes,
        )

    def samples_per_s(self, setting: StepSetting) -> float:
        """Return the sequences per second of all GPUs of its configuration."""
        return setting.gpus * setting.micro_batch_size / self.step_s


class Place(NamedTuple):
    """The place of a reading."""

    kind: bytes
    writer: bytes
    setting: StepSetting


class Readings(ABC):
    """The last readings by kind, writer and configuration, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held: OrderedDict[Place, Reading] = OrderedDict()
        """Readings, least recently updated first."""
        self.changes = 0
        """Number of changes since the start."""
        self._kinds: dict[bytes, set[Place]] = {}
        self._of_writer: Counter[bytes] = Counter()
        """Number of readings by writer."""

    def of(self, kind: bytes) -> Iterator[tuple[Place, Reading]]:
        """Yield the readings of a kind, in an order that does not depend on their history."""
        for at in sorted(self._kinds.get(kind, ())):
            yield at, self.held[at]

    def put(self, at: Place, reading: Reading) -> None:
        """Set a reading, and forget others beyond the limit."""
        self.changes += 1
        if at not in self.held:
            self._add(at)
        self.held[at] = reading
        self.held.move_to_end(at)
        while len(self.held) > self._limit:
            self._forget(self._least_needed(at))

    def state(self) -> list[Any]:
        """Return everything, in types that msgpack writes."""
        return [[*at[:2], list(at.setting), list(reading)] for at, reading in self.held.items()]

    def restore(self, state: list[Any]) -> None:
        """Set the state, of an equal limit."""
        for at in list(self.held):
            self._forget(at)
        for kind, writer, setting, reading in state:
            self.put(Place(kind, writer, StepSetting(*setting)), Reading(*reading))

    def _add(self, at: Place) -> None:
        self._kinds.setdefault(at.kind, set()).add(at)
        self._of_writer[at.writer] += 1

    def _forget(self, at: Place) -> None:
        del self.held[at]
        self._kinds[at.kind].remove(at)
        if not self._kinds[at.kind]:
            del self._kinds[at.kind]
        self._of_writer[at.writer] -= 1
        if not self._of_writer[at.writer]:
            del self._of_writer[at.writer]

    @abstractmethod
    def _least_needed(self, new: Place) -> Place:
        """Return the reading to forget."""

    def _first_of_largest_writer(self) -> Place:
        most = max(self._of_writer.values())
        return next(at for at in self.held if self._of_writer[at.writer] == most)


class PublishedReadings(Readings):
    """Readings of profilers. Beyond the limit, the profiler with most forgets its least recently updated; all
    but the first `PROFILERS_APART` of those that have readings count as one.

    So each of these keeps its readings while it has no more than its part of the limit, even if more is
    published later under many names: only the right of profilers to write is checked, not their names.
    """

    def state(self) -> list[Any]:
        return [list(self._of_writer), super().state()]

    def restore(self, state: list[Any]) -> None:
        writers, readings = state
        super().restore(readings)
        self._of_writer = Counter({writer: self._of_writer[writer] for writer in writers})

    def _least_needed(self, new: Place) -> Place:  # noqa: ARG002
        apart = set(islice(self._of_writer, PROFILERS_APART))
        held = Counter(at.writer if at.writer in apart else None for at in self.held)
        most = max(held.values())
        return next(at for at in self.held if held[at.writer if at.writer in apart else None] == most)


class MeasuredReadings(Readings):
    """Readings of runs, by user. Beyond the limit, one is forgotten for each new one, the first of these:

    1. the least recently updated of the user with most, if it has more than an eighth of all;
    2. the one of lowest rank of a configuration of a kind with more users than count, and than there are
       unconfirmed readings;
    3. the unconfirmed one of lowest rank, which no other user has in this configuration of the kind;
    4. the one of lowest rank, but never the new one: kinds that are new to a full store would never get in.

    The rank of a reading is its GPU time, at most `MOST_GPU_S`, plus the rank of the last confirmed reading
    that was forgotten before its last update (GreedyDual: Young, "The k-server dual and loose
    competitiveness for paging", 1994). So users that confirm each other displace a confirmed reading only by
    runs that take its GPU time once for each reading that the store has room for, whatever their number.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._users: Counter[tuple[bytes, StepSetting]] = Counter()
        """Number of users by kind and configuration."""
        self._ranks: dict[Place, float] = {}
        self._base = 0.0
        """Rank of the last confirmed reading that was forgotten."""

    def put(self, at: Place, reading: Reading) -> None:
        gpu_s = reading.step_s * reading.steps * at.setting.gpus
        self._ranks[at] = self._base + min(gpu_s, MOST_GPU_S)
        super().put(at, reading)

    def state(self) -> list[Any]:
        ranks = [self._ranks[at] for at in self.held]
        return [self._base, ranks, super().state()]

    def restore(self, state: list[Any]) -> None:
        base, ranks, readings = state
        super().restore(readings)
        self._base, self._ranks = base, dict(zip(self.held, ranks, strict=True))

    def _add(self, at: Place) -> None:
        super()._add(at)
        self._users[at.kind, at.setting] += 1

    def _forget(self, at: Place) -> None:
        super()._forget(at)
        del self._ranks[at]
        self._users[at.kind, at.setting] -= 1
        if not self._users[at.kind, at.setting]:
            del self._users[at.kind, at.setting]

    def _least_needed(self, new: Place) -> Place:
        if max(self._of_writer.values()) > self._limit / _WRITERS_AT_LEAST:
            return self._first_of_largest_writer()
        others = [at for at in self.held if at != new]
        unconfirmed = [at for at in others if self._users[at.kind, at.setting] == 1]
        largest = max(self._users.values())
        if largest > max(len(unconfirmed), OTHERS_AT_LEAST + 1):
            most_used = (at for at in others if self._users[at.kind, at.setting] == largest)
            return min(most_used, key=self._ranks.__getitem__)
        if unconfirmed:
            return min(unconfirmed, key=self._ranks.__getitem__)
        lowest = min(others, key=self._ranks.__getitem__)
        self._base = max(self._base, self._ranks[lowest])
        return lowest
