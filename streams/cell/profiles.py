"""The profile store of a cell: measured steps of kinds of jobs, from its own runs and from profilers."""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high, median_low
from typing import Any, Literal, NamedTuple, Self

from schemas.cells import MAX_PROFILE_READINGS
from schemas.profiles import MeasuredSteps, ProfileKey, ProfileReported
from solvers.common.interpolation import interpolated

_DIGEST_BYTES = 16
_WINDOW_STEPS = 1_000
"""Largest weight of the past in a running mean, in steps."""
OTHERS_AT_LEAST = 3
"""Users whose runs must agree before they count for another user: one of three cannot move the median beyond
the measurements of the others."""
DISAGREEMENT_FACTOR = 1.5
"""Factor between a measured and an offline duration from which they disagree, and from a measured memory to a
larger offline one. Then runs of the zone's own nodes count, and the profile does not."""
MOST_ERROR = 1.0
"""Largest relative error of an interpolation that counts; it is also that of one whose error is unknown."""
_WRITERS_AT_LEAST = 8
"""Writers that share the store: in a full one, a writer with more than this part of it displaces itself."""
_PROFILER = b"p"
"""Prefix of the digests of profilers, by which they are longer than those of users."""

Source = Literal["measured", "offline"]
"""Source of a reading. `measured`: by nodes of the zone, in runs that the cell ordered. `offline`: from the
topic `profiles`."""


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
    tokens_per_sample: float
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


class Estimate(NamedTuple):
    """The duration and the memory of a step that readings show for a configuration."""

    reading: Reading
    relative_error: float
    """Relative error of the duration: 0 where the configuration was measured; else that of `interpolated`."""
    memory_error: float
    """Relative error of the memory, likewise."""

    @property
    def slowest_step_s(self) -> float:
        """Duration of a step, longer by the error."""
        return self.reading.step_s * (1 + self.relative_error)

    @property
    def most_memory_gib(self) -> float | None:
        """Memory, larger by the error; None if it is unknown."""
        memory_gib = self.reading.memory_gib
        return None if memory_gib is None else memory_gib * (1 + self.memory_error)


class ProfileStore:
    """The last measurements of a cell, by zone, kind of jobs, writer and configuration.

    A user's runs are kept apart from those of others, and from profilers. Beyond `limit`, one reading is
    forgotten for each new one, the least recently updated of the first of these that there are:

    1. those of the writer with most, if it has more than an eighth of the store;
    2. those of the configuration of a kind with most writers, if it has more than are needed to count, and
       more than there are unconfirmed readings;
    3. unconfirmed ones, which no other writer has in this configuration of the kind;
    4. all but the new one.

    So a writer never displaces confirmed readings of others, nor do many with one reading each. Many that
    confirm each other on ever new kinds could.
    """

    def __init__(self, limit: int = MAX_PROFILE_READINGS) -> None:
        self._limit = limit
        self._readings: OrderedDict[tuple[bytes, bytes, StepSetting], Reading] = OrderedDict()
        """By kind, writer and configuration, least recently updated first."""
        self._kinds: dict[bytes, set[tuple[bytes, bytes, StepSetting]]] = {}
        self._held: Counter[bytes] = Counter()
        """Number of readings by writer."""
        self._writers: Counter[tuple[bytes, StepSetting]] = Counter()
        """Number of writers by kind and configuration."""

    def publish(self, event: ProfileReported) -> None:
        """Add an offline profile, in place of earlier readings of its configurations."""
        for point in event.points:
            setting = StepSetting(point.gpu_type, point.micro_batch_size, point.gpus, point.nodes)
            reading = Reading(
                point.step_s,
                point.steps,
                point.tokens_per_sample,
                point.exchange_s,
                point.memory_gib,
                point.loader_s,
            )
            self._put((_kind(event.zone, event.key), _profiler(event.profiler), setting), reading)

    def measure(self, zone: str, key: ProfileKey, user: str, setting: StepSetting, new: Reading) -> None:
        """Add steps of a run of a user's job to their running mean."""
        at = (_kind(zone, key), _writer(user), setting)
        old, new = self._readings.get(at), new._replace(steps=min(new.steps, _WINDOW_STEPS))
        self._put(at, new if old is None else _mean(old, new))

    def offline(self, zone: str, key: ProfileKey) -> dict[StepSetting, Reading]:
        """Return the offline readings of a kind, by configuration: of several profilers, the lower median.

        A profiler's readings of a GPU type do not count if they disagree with the medians of the runs of all
        users in a configuration, which either side may have interpolated.
        """
        by_writer: dict[bytes, dict[StepSetting, Reading]] = {}
        kind = _kind(zone, key)
        for at in sorted(self._kinds.get(kind, ())):
            if _is_profiler(at[1]):
                by_writer.setdefault(at[1], {})[at[2]] = self._readings[at]
        runs = self._of(kind, lambda _: True, 1) if by_writer else {}
        found: dict[StepSetting, list[Reading]] = {}
        for readings in by_writer.values():
            refuted = {
                at.gpu_type
                for at in {*runs, *readings}
                if _disagree(estimated(readings, at), estimated(runs, at))
            }
            for setting, reading in readings.items():
                if setting.gpu_type not in refuted:
                    found.setdefault(setting, []).append(reading)
        return {setting: _lower_median(each) for setting, each in found.items()}

    def own(self, zone: str, key: ProfileKey, user: str) -> dict[StepSetting, Reading]:
        """Return the readings of a user's own runs, by configuration."""
        return self._of(_kind(zone, key), lambda writer: writer == _writer(user), 1)

    def others(self, zone: str, key: ProfileKey, user: str) -> dict[StepSetting, Reading]:
        """Return the medians of the runs of other users, by configuration, where there are enough users."""
        own = _writer(user)
        return self._of(_kind(zone, key), lambda writer: writer != own, OTHERS_AT_LEAST)

    def _of(
        self, kind: bytes, includes: Callable[[bytes], bool], at_least: int
    ) -> dict[StepSetting, Reading]:
        """Return the medians of the runs of some users, by configuration."""
        found: dict[StepSetting, list[Reading]] = {}
        for at in sorted(self._kinds.get(kind, ())):
            if not _is_profiler(at[1]) and includes(at[1]):
                found.setdefault(at[2], []).append(self._readings[at])
        return {setting: _median(each) for setting, each in found.items() if len(each) >= at_least}

    def _put(self, at: tuple[bytes, bytes, StepSetting], reading: Reading) -> None:
        kind, writer, setting = at
        if at not in self._readings:
            self._kinds.setdefault(kind, set()).add(at)
            self._held[writer] += 1
            self._writers[kind, setting] += 1
        self._readings[at] = reading
        self._readings.move_to_end(at)
        while len(self._readings) > self._limit:
            self._forget(self._least_needed(at))

    def _least_needed(self, new: tuple[bytes, bytes, StepSetting]) -> tuple[bytes, bytes, StepSetting]:
        """Return the reading to forget: never the new one, since kinds that are new to a full store would
        never get in."""
        if (most := max(self._held.values())) > self._limit / _WRITERS_AT_LEAST:
            return next(at for at in self._readings if self._held[at[1]] == most)
        is_new_alone = self._writers[new[0], new[2]] == 1
        unconfirmed = sum(writers == 1 for writers in self._writers.values()) - is_new_alone
        largest = max(self._writers.values())
        if largest > max(unconfirmed, OTHERS_AT_LEAST + 1):
            return next(at for at in self._readings if at != new and self._writers[at[0], at[2]] == largest)
        return next(
            at for at in self._readings if at != new and (not unconfirmed or self._writers[at[0], at[2]] == 1)
        )

    def _forget(self, at: tuple[bytes, bytes, StepSetting]) -> None:
        kind, writer, setting = at
        del self._readings[at]
        self._kinds[kind].remove(at)
        if not self._kinds[kind]:
            del self._kinds[kind]
        self._held[writer] -= 1
        if not self._held[writer]:
            del self._held[writer]
        self._writers[kind, setting] -= 1
        if not self._writers[kind, setting]:
            del self._writers[kind, setting]

    def state(self) -> list[Any]:
        """Return everything, in types that msgpack writes."""
        return [
            [kind, writer, list(setting), list(reading)]
            for (kind, writer, setting), reading in self._readings.items()
        ]

    def restore(self, state: list[Any]) -> None:
        """Set the state, of an equal limit."""
        self._readings.clear()
        self._kinds.clear()
        self._held.clear()
        self._writers.clear()
        for kind, writer, setting, reading in state:
            self._put((kind, writer, StepSetting(*setting)), Reading(*reading))

    def describe(self) -> dict[str, int]:
        """Describe it for an operator: the number of readings by source."""
        offline = sum(count for writer, count in self._held.items() if _is_profiler(writer))
        return {"measured": len(self._readings) - offline, "offline": offline}


@dataclass(frozen=True)
class ZoneProfiles:
    """The profile store, for one zone."""

    store: ProfileStore
    zone: str

    def measure(self, key: ProfileKey, user: str, setting: StepSetting, new: Reading) -> None:
        """Add steps of a run of a user's job, as `ProfileStore.measure`."""
        self.store.measure(self.zone, key, user, setting, new)

    def own(self, key: ProfileKey, user: str) -> dict[StepSetting, Reading]:
        """Return the readings of a user's own runs, by configuration."""
        return self.store.own(self.zone, key, user)

    def others(self, key: ProfileKey, user: str) -> dict[StepSetting, Reading]:
        """Return the medians of at least `OTHERS_AT_LEAST` other users, by configuration."""
        return self.store.others(self.zone, key, user)

    def offline(self, key: ProfileKey) -> dict[StepSetting, Reading]:
        """Return the offline readings, by configuration."""
        return self.store.offline(self.zone, key)

    def counting(self, keys: Sequence[ProfileKey], user: str) -> dict[StepSetting, Reading]:
        """Return the readings of some kinds that count for a job of a user, by configuration. The user's own
        runs count before those of others, and these before offline profiles."""
        offline, measured = dict[StepSetting, Reading](), dict[StepSetting, Reading]()
        for key in keys:
            offline |= self.offline(key)
            measured |= self.others(key, user) | self.own(key, user)
        return offline | measured


def estimated(readings: Mapping[StepSetting, Reading], at: StepSetting) -> Estimate | None:
    """Return the estimate of a configuration from readings; None if these are too few.

    A measured configuration counts as it is, then the interpolation by micro-batch, then by GPUs. One that is
    wrong by more than `MOST_ERROR` does not count.
    """
    if (exact := readings.get(at)) is not None:
        return Estimate(exact, 0.0, 0.0)
    for name in ("micro_batch_size", "gpus"):
        number = getattr(at, name)
        along = {
            getattr(held, name): reading
            for held, reading in readings.items()
            if held._replace(**{name: number}) == at
        }
        step_s = interpolated({each: reading.step_s for each, reading in along.items()}, number)
        if step_s is None or step_s.relative_error > MOST_ERROR:
            continue
        memories = {each: r.memory_gib for each, r in along.items() if r.memory_gib is not None}
        memory_gib = interpolated(memories, number)
        if memory_gib is not None and memory_gib.relative_error > MOST_ERROR:
            memory_gib = None
        reading = Reading(
            step_s.value,
            steps=min(each.steps for each in along.values()),
            tokens_per_sample=median(each.tokens_per_sample for each in along.values()),
            memory_gib=None if memory_gib is None else memory_gib.value,
        )
        return Estimate(
            reading, step_s.relative_error, 0.0 if memory_gib is None else memory_gib.relative_error
        )
    return None


def _disagree(profile: Estimate | None, runs: Estimate | None) -> bool:
    """Return whether a profile has another duration than runs of its configuration, or more memory. Runs may
    take less memory, since their records may be shorter."""
    if profile is None or runs is None:
        return False
    factor = profile.reading.step_s / runs.reading.step_s
    most = DISAGREEMENT_FACTOR * (1 + runs.relative_error)
    memory_gib, most_gib = profile.reading.memory_gib, runs.most_memory_gib
    return not 1 / most < factor < most or (
        memory_gib is not None and most_gib is not None and memory_gib >= most_gib * DISAGREEMENT_FACTOR
    )


def _mean(old: Reading, new: Reading) -> Reading:
    """Return the running mean; older steps count for a window at most."""
    part = new.steps / (old.steps + new.steps)

    def mixed(before: float | None, after: float | None) -> float | None:
        if before is None or after is None:
            return after if before is None else before
        return before * (1 - part) + after * part

    return Reading(
        step_s=old.step_s * (1 - part) + new.step_s * part,
        steps=min(old.steps + new.steps, _WINDOW_STEPS),
        tokens_per_sample=old.tokens_per_sample * (1 - part) + new.tokens_per_sample * part,
        exchange_s=old.exchange_s * (1 - part) + new.exchange_s * part,
        memory_gib=_largest(old.memory_gib, new.memory_gib),
        loader_s=mixed(old.loader_s, new.loader_s),
    )


def _largest(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _median(readings: list[Reading]) -> Reading:
    memories = [reading.memory_gib for reading in readings if reading.memory_gib is not None]
    loaders = [reading.loader_s for reading in readings if reading.loader_s is not None]
    return Reading(
        step_s=median(reading.step_s for reading in readings),
        steps=sum(reading.steps for reading in readings),
        tokens_per_sample=median(reading.tokens_per_sample for reading in readings),
        exchange_s=median(reading.exchange_s for reading in readings),
        memory_gib=median_high(memories) if len(memories) >= min(len(readings), OTHERS_AT_LEAST) else None,
        loader_s=median(loaders) if loaders else None,
    )


def _lower_median(readings: list[Reading]) -> Reading:
    """Return the lower median of duration and memory, so that one of two profilers raises neither."""
    by_step_s = sorted(readings, key=lambda reading: reading.step_s)
    memories = [reading.memory_gib for reading in readings if reading.memory_gib is not None]
    memory_gib = median_low(memories) if memories else None
    return by_step_s[(len(readings) - 1) // 2]._replace(memory_gib=memory_gib)


def _digest(*parts: str) -> bytes:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=_DIGEST_BYTES).digest()


def _kind(zone: str, key: ProfileKey) -> bytes:
    return _digest(zone, key.model_dump_json())


def _writer(user: str) -> bytes:
    return _digest(user)


def _profiler(name: str) -> bytes:
    return _PROFILER + _digest(name)


def _is_profiler(writer: bytes) -> bool:
    return len(writer) > _DIGEST_BYTES
