"""The profile store of a cell: measured steps of kinds of jobs, from its own runs and from profilers."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high, median_low
from typing import Any, Literal, NamedTuple

from schemas.cells import MAX_PROFILE_READINGS, Zone
from schemas.profiles import Precision, ProfileKey, ProfileReported
from solvers.common.interpolation import interpolated
from streams.cell.readings import (
    OTHERS_AT_LEAST,
    MeasuredReadings,
    Place,
    PublishedReadings,
    Reading,
    StepSetting,
)

_DIGEST_BYTES = 16
WINDOW_STEPS = 1_000
"""Largest weight of the past in a running mean, in steps."""
DISAGREEMENT_FACTOR = 1.5
"""Factor between a measured and an offline duration from which they disagree, and from a measured memory to a
larger offline one. Then runs of the zone's own nodes count, and the profile does not."""
MOST_ERROR = 1.0
"""Largest relative error of an interpolation that counts; it is also that of one whose error is unknown."""
_PUBLISHED_PART = 4
"""Part of the store for published readings: they never displace measured ones."""

Source = Literal["measured", "offline"]
"""Source of a reading. `measured`: by nodes of the zone, in runs that the cell ordered. `offline`: from the
topic `profiles`."""


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
    """The last measurements of a cell, by zone, kind of jobs, writer and configuration, at most `limit`.

    Runs of a user are kept apart from runs of other users, and from profilers, which have a quarter of the
    store. `MeasuredReadings` and `PublishedReadings` describe which readings a full store drops.
    """

    def __init__(self, limit: int = MAX_PROFILE_READINGS) -> None:
        published = limit // _PUBLISHED_PART
        self._measured, self._published = MeasuredReadings(limit - published), PublishedReadings(published)

    @property
    def changes(self) -> int:
        """Number of changes since the start: without any, it has the same readings."""
        return self._measured.changes + self._published.changes

    @property
    def is_empty(self) -> bool:
        """Whether there is no reading."""
        return not self._measured.held and not self._published.held

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
            self._published.put(
                Place(_kind(event.zone, event.key), _digest(event.profiler), setting), reading
            )

    def measure(self, zone: str, key: ProfileKey, user: str, setting: StepSetting, new: Reading) -> None:
        """Add steps of a run of a user's job to their running mean."""
        at = Place(_kind(zone, key), _digest(user), setting)
        old, new = self._measured.held.get(at), new._replace(steps=min(new.steps, WINDOW_STEPS))
        self._measured.put(at, new if old is None else _mean(old, new))

    def offline(self, zone: str, key: ProfileKey) -> dict[StepSetting, Reading]:
        """Return the offline readings of a kind, by configuration: of several profilers, the lower median.

        A profiler's readings of a GPU type do not count if they disagree with the medians of the runs of all
        users in a configuration, which either side may have interpolated.
        """
        by_writer: dict[bytes, dict[StepSetting, Reading]] = {}
        kind = _kind(zone, key)
        for at, reading in self._published.of(kind):
            by_writer.setdefault(at.writer, {})[at.setting] = reading
        runs = self.measured(zone, key) if by_writer else {}
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

    def measured(self, zone: str, key: ProfileKey) -> dict[StepSetting, Reading]:
        """Return the medians of the runs of all users, by configuration."""
        return self._of(_kind(zone, key), lambda _: True, 1)

    def own(self, zone: str, key: ProfileKey, user: str) -> dict[StepSetting, Reading]:
        """Return the readings of a user's own runs, by configuration."""
        return self._of(_kind(zone, key), lambda writer: writer == _digest(user), 1)

    def others(self, zone: str, key: ProfileKey, user: str) -> dict[StepSetting, Reading]:
        """Return the medians of the runs of other users, by configuration, where there are enough users."""
        own = _digest(user)
        return self._of(_kind(zone, key), lambda writer: writer != own, OTHERS_AT_LEAST)

    def _of(
        self, kind: bytes, includes: Callable[[bytes], bool], at_least: int
    ) -> dict[StepSetting, Reading]:
        """Return the medians of the runs of some users, by configuration."""
        found: dict[StepSetting, list[Reading]] = {}
        for at, reading in self._measured.of(kind):
            if includes(at.writer):
                found.setdefault(at.setting, []).append(reading)
        return {setting: _median(each) for setting, each in found.items() if len(each) >= at_least}

    def state(self) -> list[Any]:
        """Return everything, in types that msgpack writes."""
        return [self._measured.state(), self._published.state()]

    def restore(self, state: list[Any]) -> None:
        """Set the state, of an equal limit."""
        measured, published = state
        self._measured.restore(measured)
        self._published.restore(published)

    def describe(self) -> dict[str, int]:
        """Describe it for an operator: the number of readings by source."""
        return {"measured": len(self._measured.held), "offline": len(self._published.held)}


@dataclass(frozen=True)
class ZoneProfiles:
    """The profile store, for one zone."""

    store: ProfileStore
    zone: str

    def measure(self, key: ProfileKey, user: str, setting: StepSetting, new: Reading) -> None:
        """Add steps of a run of a user's job, as `ProfileStore.measure`."""
        self.store.measure(self.zone, key, user, setting, new)

    @property
    def changes(self) -> int:
        """Number of changes of the store since the start."""
        return self.store.changes

    @property
    def is_empty(self) -> bool:
        """Whether the store has no reading."""
        return self.store.is_empty

    def measured(self, key: ProfileKey) -> dict[StepSetting, Reading]:
        """Return the medians of the runs of all users, by configuration."""
        return self.store.measured(self.zone, key)

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


def precision_of(zone: Zone) -> Precision:
    """Return the type of the numbers of a pass, as the dimensions of a zone's base model state it."""
    base = zone.base_dimensions
    return "float32" if base is not None and base.activation_bytes == 4 else "bfloat16"


def estimated(readings: Mapping[StepSetting, Reading], at: StepSetting) -> Estimate | None:
    """Return the estimate of a configuration from readings; None if these are too few.

    A measured configuration counts as it is, then the interpolation by micro-batch, then by GPUs. One that is
    wrong by more than `MOST_ERROR` does not count.
    """
    if not readings:
        return None
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
            tokens_per_sample=None,
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
        steps=min(old.steps + new.steps, WINDOW_STEPS),
        tokens_per_sample=mixed(old.tokens_per_sample, new.tokens_per_sample),
        exchange_s=old.exchange_s * (1 - part) + new.exchange_s * part,
        memory_gib=_largest(old.memory_gib, new.memory_gib),
        loader_s=mixed(old.loader_s, new.loader_s),
    )


def _largest(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _median(readings: list[Reading]) -> Reading:
    memories = [reading.memory_gib for reading in readings if reading.memory_gib is not None]
    tokens = [reading.tokens_per_sample for reading in readings if reading.tokens_per_sample is not None]
    loaders = [reading.loader_s for reading in readings if reading.loader_s is not None]
    return Reading(
        step_s=median(reading.step_s for reading in readings),
        steps=sum(reading.steps for reading in readings),
        tokens_per_sample=median(tokens) if tokens else None,
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
