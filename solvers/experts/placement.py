"""Demand for the experts of a layer, and their placement on devices."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from schemas.experts.workload import MAX_PER_DEVICE, PUBLISHED_PER_DEVICE
from solvers.compiled import Bools, Floats, Ints

MAX_DEVICES = 1_024
MAX_EXPERTS = 1_024
MAX_LOAD = 2**44
"""Bound on the load of a batch: its product with the number of slots still fits 64 bits."""
_WHOLE = 2**32
"""Parts in which a popularity is counted, so that all later arithmetic is in integers."""
FREE = -1


@dataclass(frozen=True, eq=False)
class ExpertDemand:
    """Part of a batch that each expert gets, forecast or counted."""

    loads: Ints
    """Load of each expert, (experts,), in tokens or any other unit; 0 if it gets none or it is unknown."""
    total: int
    """Load of the whole batch in the same unit; more than the sum of the loads if some are unknown."""

    def __post_init__(self) -> None:
        if not 1 <= self.loads.size <= MAX_EXPERTS:
            raise ValueError(f"{self.loads.size} experts, expected 1 to {MAX_EXPERTS}")
        if self.loads.min() < 0:
            expert = int(self.loads.argmin())
            raise ValueError(f"expert {expert} has a load of {self.loads[expert]}: loads are never negative")
        if not int(self.loads.max()) <= self.total <= MAX_LOAD or self.known > self.total:
            raise ValueError(
                f"the loads add up to {self.known} and the batch to {self.total}, at most {MAX_LOAD}: "
                "a batch has at least what its experts get"
            )

    @classmethod
    def of_counts(cls, tokens: Ints) -> Self:
        """Return the demand of counted tokens.

        Args:
            tokens: (experts,) tokens that chose each expert. With two experts per token both count.
        """
        return cls(tokens.astype(np.int64), int(tokens.sum(dtype=np.int64)))

    @classmethod
    def of_popularity(cls, popularity: Floats) -> Self:
        """Return the demand of an estimate, in parts of 2^32.

        Args:
            popularity: (experts,) the part of the batch that each expert gets; their sum is 1 at most
                (the sum in Eq. 4.1).

        Raises:
            ValueError: a part is not a number from 0 to 1, or they add up to more than 1.
        """
        if not (popularity >= 0).all() or not (popularity <= 1).all():
            expert = int(np.argmin((popularity >= 0) & (popularity <= 1)))
            raise ValueError(f"the popularity of expert {expert} is {popularity[expert]}, expected 0 to 1")
        loads = np.rint(popularity * _WHOLE).astype(np.int64)
        known = int(loads.sum())
        if known > _WHOLE + loads.size:
            raise ValueError(f"popularities add up to {known / _WHOLE:.9f}, at most 1 is the whole batch")
        return cls(loads, max(known, _WHOLE))

    @classmethod
    def combined(cls, parts: Iterable[Self]) -> Self:
        """Return the sum of the demands of parts of a batch, such as those of each rank."""
        found = list(parts)
        return cls(np.sum([part.loads for part in found], axis=0), sum(part.total for part in found))

    def top(self, count: int) -> tuple[int, ...]:
        """Return the experts with the largest loads above 0, the most popular first, ties by index."""
        order = np.argsort(-self.loads, kind="stable")[:count]
        return tuple(int(expert) for expert in order if self.loads[expert])

    @property
    def known(self) -> int:
        """Sum of the loads."""
        return int(self.loads.sum())

    @property
    def popularity(self) -> Floats:
        """Part of the batch that each expert gets, (experts,)."""
        return self.loads / max(self.total, 1)

    def filled(self) -> "ExpertDemand":
        """Return the demand with its unknown part spread evenly over all experts; for an empty batch, as if
        each expert got one token."""
        if not self.total:
            return ExpertDemand(np.ones_like(self.loads), self.loads.size)
        missing = self.total - self.known
        if not missing:
            return self
        each, left = divmod(missing, self.loads.size)
        loads = self.loads + each
        loads[:left] += 1
        return ExpertDemand(loads, self.total)


@dataclass(frozen=True)
class DeviceGroup:
    """Equal devices, and the number of experts of a layer that each may have."""

    devices: int
    most_per_device: int = PUBLISHED_PER_DEVICE

    def __post_init__(self) -> None:
        if not 1 <= self.devices <= MAX_DEVICES:
            raise ValueError(f"{self.devices} devices, expected 1 to {MAX_DEVICES}")
        if not 1 <= self.most_per_device <= MAX_PER_DEVICE:
            raise ValueError(
                f"at most {self.most_per_device} experts per device, expected 1 to {MAX_PER_DEVICE}"
            )

    def check(self, experts: int) -> None:
        """Check that there is room for each of the experts once.

        Raises:
            ValueError: there is not.
        """
        if experts > self.devices * self.most_per_device:
            raise ValueError(
                f"{experts} experts do not fit on {self.devices} devices with at most "
                f"{self.most_per_device} each: take more devices, or allow more experts on each"
            )


@dataclass(frozen=True, eq=False)
class ExpertPlacement:
    """Experts of each device, and the part of an expert's tokens that it processes.

    A slot is the place of one expert on a device: slot j of device d has number d x slots per device + j.
    """

    experts: Ints
    """Experts of each device, (devices, slots), ascending, then `FREE`. No device has an expert twice."""
    shares: Floats
    """Share of the expert's tokens, (devices, slots). Shares of an expert add up to 1 but for rounding, and
    are 0 on free slots."""
    count: int
    """Number of experts of the layer, all of which are placed."""

    @classmethod
    def of_parts(cls, parts: Ints, most_per_device: int) -> Self:
        """Make a placement from the part of each expert's load that each device gets.

        Args:
            parts: (devices, experts) in any unit, -1 where a device does not have the expert. If all parts
                of an expert are 0, it is shared evenly.
        """
        devices, count = parts.shape
        has = parts >= 0
        replicas = has.sum(axis=0)
        if not replicas.all():
            raise ValueError(f"expert {int(np.argmin(replicas))} is on no device")
        loads = np.where(has, parts, 0).sum(axis=0)
        experts = np.full((devices, most_per_device), FREE, np.int64)
        shares = np.zeros((devices, most_per_device))
        slot = np.cumsum(has, axis=1) - 1
        row, expert = np.nonzero(has)
        column = slot[row, expert]
        if column.size and int(column.max()) >= most_per_device:
            device = int(row[int(column.argmax())])
            raise ValueError(f"device {device} has {has[device].sum()} experts, at most {most_per_device}")
        experts[row, column] = expert
        even = loads[expert] == 0
        part = np.where(even, 1, parts[row, expert])
        shares[row, column] = part / np.where(even, replicas[expert], loads[expert])
        return cls(experts, shares, count)

    @classmethod
    def of_lists(cls, experts: list[list[int]], count: int, most_per_device: int | None = None) -> Self:
        """Make a placement from the experts on each device, each shared evenly among the devices that have
        it.

        Raises:
            ValueError: a device has an expert twice or too many experts, or an expert is on no device or
                does not exist.
        """
        parts = np.full((len(experts), count), FREE, np.int64)
        for device, row in enumerate(experts):
            for expert in row:
                if not 0 <= expert < count:
                    raise ValueError(f"device {device} has expert {expert} of a layer with {count}")
                if parts[device, expert] != FREE:
                    raise ValueError(f"device {device} has expert {expert} twice")
                parts[device, expert] = 0
        return cls.of_parts(parts, most_per_device or max(map(len, experts), default=1))

    @property
    def devices(self) -> int:
        """Number of devices, with those that have no expert."""
        return int(self.experts.shape[0])

    @property
    def slots(self) -> int:
        """Number of slots of each device."""
        return int(self.experts.shape[1])

    def replicas(self) -> Ints:
        """Return the number of devices that have each expert, (experts,)."""
        return np.bincount(self.experts[self.experts != FREE], minlength=self.count).astype(np.int64)

    def held(self) -> Bools:
        """Return whether each device has each expert, (devices, experts)."""
        held = np.zeros((self.devices, self.count), np.bool_)
        device, slot = np.nonzero(self.experts != FREE)
        held[device, self.experts[device, slot]] = True
        return held

    def lists(self) -> list[list[int]]:
        """Return the experts on each device."""
        return [[expert for expert in row if expert != FREE] for row in self.experts.tolist()]

    def to_json(self) -> dict[str, Any]:
        """Return the placement as values of JSON, for `from_json`."""
        return {"count": self.count, "experts": self.experts.tolist(), "shares": self.shares.tolist()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(
            np.array(values["experts"], np.int64), np.array(values["shares"], np.float64), values["count"]
        )
