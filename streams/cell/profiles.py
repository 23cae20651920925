"""The profile store of a cell: measured steps of kinds of jobs, from its own runs and from profilers."""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_high
from typing import Any, Literal, NamedTuple, Self

from schemas.cells import MAX_PROFILE_READINGS, Zone
from schemas.facts import Facts, quoted
from schemas.profiles import MeasuredSteps, ProfileKey, ProfileReported
from solvers.common.interpolation import interpolated

_DIGEST_BYTES = 16
_WINDOW_STEPS = 1_000
"""Most steps that the past of a running mean counts for."""
OTHERS_AT_LEAST = 3
"""Users whose runs must agree before they count for another user: one of three cannot move the median beyond
the measurements of the others."""
DISAGREEMENT_FACTOR = 1.5
"""Factor between a measured and an offline duration from which they disagree."""
_OFFLINE = b""

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
    """The estimated duration of a step."""

    step_s: float
    relative_error: float
    """0 for a measured configuration; else the error of `interpolated`."""
    source: Source
    disagrees: bool
    """Whether an offline profile differs from the measurement by `DISAGREEMENT_FACTOR` or more; the
    measurement counts."""


class ProfileStore:
    """The last measurements of a cell, by zone, kind of jobs, writer and configuration.

    A user's runs are kept apart from those of others. Beyond `limit`, the writer with most readings loses
    the one that was updated least recently, so a flood displaces itself.
    """

    def __init__(self, limit: int = MAX_PROFILE_READINGS) -> None:
        self._limit = limit
        self._readings: OrderedDict[tuple[bytes, bytes, StepSetting], Reading] = OrderedDict()
        """By kind, writer and configuration, least recently updated first."""
        self._kinds: dict[bytes, set[tuple[bytes, bytes, StepSetting]]] = {}
        self._held: Counter[bytes] = Counter()
        """Number of readings by writer."""

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
            self._put((_kind(event.zone, event.key), _OFFLINE, setting), reading)

    def measure(self, zone: str, key: ProfileKey, user: str, setting: StepSetting, new: Reading) -> None:
        """Add steps of a run of a user's job to their running mean."""
        at = (_kind(zone, key), _writer(user), setting)
        old, new = self._readings.get(at), new._replace(steps=min(new.steps, _WINDOW_STEPS))
        self._put(at, new if old is None else _mean(old, new))

    def offline(self, zone: str, key: ProfileKey) -> dict[StepSetting, Reading]:
        """Return the offline readings of a kind, by configuration."""
        return self._of(_kind(zone, key), lambda writer: writer == _OFFLINE, 1)

    def own(self, zone: str, key: ProfileKey, user: str) -> dict[StepSetting, Reading]:
        """Return the readings of a user's own runs, by configuration."""
        return self._of(_kind(zone, key), lambda writer: writer == _writer(user), 1)

    def others(self, zone: str, key: ProfileKey, user: str) -> dict[StepSetting, Reading]:
        """Return the medians of the runs of other users, by configuration, where there are enough users."""
        own = _writer(user)
        return self._of(_kind(zone, key), lambda writer: writer not in (_OFFLINE, own), OTHERS_AT_LEAST)

    def _of(self, kind: bytes, takes: Callable[[bytes], bool], at_least: int) -> dict[StepSetting, Reading]:
        found: dict[StepSetting, list[Reading]] = {}
        for at in sorted(self._kinds.get(kind, ())):
            if takes(at[1]):
                found.setdefault(at[2], []).append(self._readings[at])
        return {setting: _median(each) for setting, each in found.items() if len(each) >= at_least}

    def _put(self, at: tuple[bytes, bytes, StepSetting], reading: Reading) -> None:
        kind, writer, _ = at
        if at not in self._readings:
            self._kinds.setdefault(kind, set()).add(at)
            self._held[writer] += 1
        self._readings[at] = reading
        self._readings.move_to_end(at)
        while len(self._readings) > self._limit:
            self._forget_one()

    def _forget_one(self) -> None:
        most = max(self._held.values())
        oldest = next(at for at in self._readings if self._held[at[1]] == most)
        kind, writer, _ = oldest
        del self._readings[oldest]
        self._kinds[kind].remove(oldest)
        if not self._kinds[kind]:
            del self._kinds[kind]
        self._held[writer] -= 1
        if not self._held[writer]:
            del self._held[writer]

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
        for kind, writer, setting, reading in state:
            self._put((kind, writer, StepSetting(*setting)), Reading(*reading))

    def describe(self) -> dict[str, int]:
        """Describe it for an operator: the number of readings by source."""
        return {"measured": len(self._readings) - self._held[_OFFLINE], "offline": self._held[_OFFLINE]}


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

    def counting(self, keys: Sequence[ProfileKey], user: str) -> tuple[dict[StepSetting, Reading], Source]:
        """Return the readings of some kinds that count for a job of a user, by configuration, and whether any
        of them is measured. The user's own runs count before those of others, and these before offline
        profiles."""
        offline, measured = dict[StepSetting, Reading](), dict[StepSetting, Reading]()
        for key in keys:
            offline |= self.offline(key)
            measured |= self.others(key, user) | self.own(key, user)
        return offline | measured, "measured" if measured else "offline"

    def estimate(self, key: ProfileKey, user: str, setting: StepSetting) -> Estimate | None:
        """Return the duration of a step in a configuration, for a job of a user; None if too little is known.

        The user's own runs count first, then those of others, then offline profiles. Within a source, a
        measured configuration counts, then the interpolation by micro-batch, then by GPUs.
        """
        measured = _first_found((self.own(key, user), self.others(key, user)), setting)
        offline = _first_found((self.offline(key),), setting)
        if measured is None:
            return None if offline is None else Estimate(*offline, "offline", disagrees=False)
        disagrees = offline is not None and not (
            1 / DISAGREEMENT_FACTOR < measured[0] / offline[0] < DISAGREEMENT_FACTOR
        )
        return Estimate(*measured, "measured", disagrees)


def refusal(event: ProfileReported, zone: Zone) -> Facts | None:
    """Return why a published profile does not count in its zone, with a `case`; None if it counts."""
    is_shared = zone.policy.shares_base_model
    if is_shared and event.key.base_model != zone.base_model:
        return {
            "case": "other_base_model",
            "zone": zone.id,
            "base_model": quoted(event.key.base_model),
            "zone_base_model": zone.base_model,
        }
    types = {gpu.name: gpu for gpu in zone.gpu_types}
    for point in event.points:
        gpu = types.get(point.gpu_type)
        if gpu is None:
            return {"case": "unknown_gpu_type", "zone": zone.id, "gpu_type": point.gpu_type}
        # Without a shared base model, speeds of GPU types are only relative to each other.
        if is_shared and point.samples_per_s > gpu.samples_per_s * point.nodes:
            return {
                "case": "faster_than_node",
                "gpu_type": gpu.name,
                "samples_per_s": point.samples_per_s,
                "most_samples_per_s": gpu.samples_per_s * point.nodes,
            }
        most_gib = gpu.memory_gib - zone.base_model_memory_gib
        if point.memory_gib is not None and point.memory_gib > most_gib:
            return {
                "case": "more_than_node",
                "gpu_type": gpu.name,
                "memory_gib": point.memory_gib,
                "most_gib": most_gib,
            }
    return None


def _first_found(
    sources: tuple[dict[StepSetting, Reading], ...], setting: StepSetting
) -> tuple[float, float] | None:
    for readings in sources:
        if (found := next(_found(readings, setting), None)) is not None:
            return found
    return None


def _found(readings: dict[StepSetting, Reading], at: StepSetting) -> Iterator[tuple[float, float]]:
    """Yield durations with their errors: as measured, by micro-batch, by GPUs."""
    for name in ("micro_batch_size", "gpus"):
        along = {
            getattr(held, name): reading.step_s
            for held, reading in readings.items()
            if held._replace(**{name: getattr(at, name)}) == at
        }
        found = interpolated(along, getattr(at, name))
        if found is not None:
            yield found.value, found.relative_error


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


def _digest(*parts: str) -> bytes:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=_DIGEST_BYTES).digest()


def _kind(zone: str, key: ProfileKey) -> bytes:
    return _digest(zone, key.model_dump_json())


def _writer(user: str) -> bytes:
    return _digest(user)
