"""Settings of a zone under the elastic policy."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import LEAST_S, Identifier
from schemas.cells import Zone
from schemas.facts import Fault
from schemas.kind import DEFAULT_ORDER_TIMEOUT_S, OrderTimeoutSeconds, PolicySettings

SchemeName = Literal["lyra", "fifo", "opportunistic", "gandiva", "afs", "pollux"]
ReclaimingName = Literal["preemption_cost", "smallest_count", "random"]
Scenario = Literal["basic", "advanced", "heterogeneous", "ideal"]


LEAST_INTERVAL_S = 0.01
"""Shortest interval, equal to the shortest slot of a cell."""
MAX_SLOWNESS = 1_024
"""Most workers on slower GPUs that count as one, and most workers of a job."""
DEFAULT_WORK_AT_RISK_S = 14_400.0
"""Default of `most_work_at_risk_s`: the best of 0, 1 h, 4 h and no limit for the mean JCT of two generated
workloads, 15 days on a quarter of the thesis' clusters, seeds 1 and 2."""
DEFAULT_ASSUMED_RUNNING_S = 86_400.0
_IDS_PER_SERVER = 7
_BYTES_PER_SERVER = 64


class ElasticPolicy(PolicySettings):
    """Two-phase allocation, best-fit placement, and reclaims of least preemption cost (thesis, chapter 3)."""

    shares_base_model: ClassVar = False
    takes_profiles: ClassVar = True
    kind: Literal["elastic"] = "elastic"
    reference_gpu_type: Identifier
    """GPU type of the jobs' profiles. Speeds of others are relative to it, per GPU (erratum L4)."""
    interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=86_400)] = 60.0
    """Interval between allocations of workers."""
    scheme: SchemeName = "lyra"
    """Scheme of the allocation; all but `lyra` are for comparison."""
    reclaiming: ReclaimingName = "preemption_cost"
    """Rule by which the servers to give back are chosen."""
    groups_elastic_jobs: bool = True
    """Whether elastic jobs are placed on loaned servers first, with base and flexible workers apart
    (section 3.5.3); otherwise they are placed like inelastic ones (Table 3.6)."""
    most_work_at_risk_s: Annotated[float, Field(ge=0, le=31_536_000)] = DEFAULT_WORK_AT_RISK_S
    """Longest duration of an elastic job without checkpoints, with all the workers that it may have, for
    which it is placed on loaned servers first, since it starts over after a preemption. A longer one is
    placed on training servers first. The thesis has no such limit."""
    patience_s: Annotated[float, Field(ge=LEAST_S, le=31_536_000)] = 21_600.0
    """Wait after which a job precedes shorter jobs, and servers are held for it (scheme `lyra`). Such jobs of
    different users take turns. In the thesis it may wait forever."""
    scenario: Scenario = "basic"
    """Abilities of jobs that are used besides scaling (section 3.7.1). `basic`: fungible jobs run on either
    pool, training servers or loaned ones. `advanced`: in addition, elastic heterogeneous jobs span both
    pools, then at 70 % of their speed. `heterogeneous`: these span both pools at 70 %, and fungible jobs stay
    on training servers. `ideal`: as `advanced`, at full speed. If all servers are as fast as the reference,
    every elastic job spans both pools at full speed."""
    scaling_pause_s: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """Time that a job is assumed to lose when its workers change: it is not resized for a smaller gain."""
    # Omitted if it is the default, so that settings written before it was added keep their bytes.
    assumed_running_s: Annotated[
        float,
        Field(ge=LEAST_S, le=31_536_000, exclude_if=lambda time_s: time_s == DEFAULT_ASSUMED_RUNNING_S),
    ] = DEFAULT_ASSUMED_RUNNING_S
    """Running time with its base demand that is expected of a job without a declared speed and without a
    measured one of its kind, until its first workers are measured. A long one lets jobs of known length
    precede it."""
    order_timeout_s: OrderTimeoutSeconds = DEFAULT_ORDER_TIMEOUT_S
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of schemes and choices that draw random numbers."""

    def state_bytes(self, zone: Zone) -> int:
        """Return the most bytes of the servers' state: where and why each is closed, and whether it is
        held."""
        ids = [node.id for node in zone.nodes]
        return _BYTES_PER_SERVER * len(ids) + _IDS_PER_SERVER * sum(map(len, ids))

    def tick_interval_s(self, slot_s: float) -> float:  # noqa: ARG002
        """Return an interval that does not depend on slots."""
        return self.interval_s

    def faults(self, zone: Zone) -> Iterator[Fault]:
        """Yield faults for a missing reference GPU type, and for GPUs that are far slower than it."""
        speeds = {gpu.name: gpu.samples_per_s / gpu.gpus for gpu in zone.gpu_types}
        if self.reference_gpu_type not in speeds:
            yield Fault(
                "unknown_reference_gpu_type",
                f"the reference gpu type is {self.reference_gpu_type}, which the zone lacks",
                {"gpu_type": self.reference_gpu_type},
            )
            return
        reference = speeds[self.reference_gpu_type]
        for name, speed in speeds.items():
            if reference > MAX_SLOWNESS * speed:
                yield Fault(
                    "gpu_type_too_slow",
                    f"a GPU of type {name} trains {speed:g} samples/s and one of the reference type "
                    f"{self.reference_gpu_type} {reference:g}, more than {MAX_SLOWNESS:,} times as many: "
                    "check samples_per_s, or leave the type out",
                    {"gpu_type": name, "samples_per_s": speed, "reference_samples_per_s": reference},
                )
