"""Settings of a zone under the elastic policy."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Identifier
from schemas.kind import PolicySettings

if TYPE_CHECKING:
    from schemas.cells import Zone

SchemeName = Literal["lyra", "fifo", "opportunistic", "gandiva", "afs", "pollux"]
ReclaimingName = Literal["preemption_cost", "smallest_count", "random"]
Scenario = Literal["basic", "advanced", "heterogeneous", "ideal"]


DEFAULT_WORK_AT_RISK_S = 14_400.0
"""The best of 0, 1 h, 4 h and no limit on two generated workloads, seeds 1 and 2 (docs/elastic.md)."""
_IDS_PER_SERVER = 3
_BYTES_PER_SERVER = 64


class ElasticPolicy(PolicySettings):
    """Two-phase allocation, best-fit placement, and reclaims of least preemption cost (thesis, chapter 3)."""

    shares_base_model: ClassVar = False
    kind: Literal["elastic"] = "elastic"
    reference_gpu_type: Identifier
    """The GPU that jobs' profiles speak of. Speeds of others are relative to it, per GPU (erratum L4)."""
    interval_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Workers are allocated so often."""
    scheme: SchemeName = "lyra"
    """How workers are allocated; all but `lyra` are there to be compared with."""
    reclaiming: ReclaimingName = "preemption_cost"
    """How the servers are chosen that are given back."""
    groups_elastic_jobs: bool = True
    """Whether elastic jobs are placed on loaned servers first, with base and flexible workers apart
    (section 3.5.3); otherwise they are placed like inelastic ones (Table 3.6)."""
    most_work_at_risk_s: Annotated[float, Field(ge=0, le=31_536_000)] = DEFAULT_WORK_AT_RISK_S
    """An elastic job that keeps no checkpoints starts over when it is preempted. So it is placed on loaned
    servers first only if it is done there within so long, with all the workers that it may have; a longer one
    goes to training servers first. The thesis has no such limit."""
    scenario: Scenario = "basic"
    """Which abilities of jobs are used (section 3.7.1). `basic`: another GPU type, and scaling. `advanced`:
    several GPU types at a time too, at 70 % of the speed. `heterogeneous`: several at a time and scaling.
    `ideal`: all, at full speed."""
    scaling_pause_s: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """What a job is taken to lose when its workers change: it is not resized for less."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Of schemes and choices that draw."""

    def state_bytes(self, zone: "Zone") -> int:
        """Where each server is closed, and why."""
        ids = [node.id for node in zone.nodes]
        return _BYTES_PER_SERVER * len(ids) + _IDS_PER_SERVER * sum(map(len, ids))

    def tick_interval_s(self, slot_s: float) -> float:  # noqa: ARG002
        """Slots are nothing to it."""
        return self.interval_s

    def faults(self, zone: "Zone") -> Iterator[str]:
        """A reference GPU type that the zone lacks."""
        if self.reference_gpu_type not in {gpu.name for gpu in zone.gpu_types}:
            yield f"the reference gpu type is {self.reference_gpu_type}, which the zone lacks"
