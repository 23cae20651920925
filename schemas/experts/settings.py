"""Settings of a zone under the experts policy."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import LEAST_PART, LEAST_S
from schemas.cells import Zone
from schemas.kind import DEFAULT_ORDER_TIMEOUT_S, OrderTimeoutSeconds, PolicySettings

LEAST_INTERVAL_S = 0.05
_BYTES_PER_NODE = 64
_IDS_PER_NODE = 4


class ExpertsPolicy(PolicySettings):
    """Placement of experts by their popularity as it drifts (Lina; thesis, chapter 4).

    The serving job itself places experts for a single batch. The zone decides on the placement between
    batches: the experts of each device, and the number of their replicas.
    """

    shares_base_model: ClassVar = False
    takes_profiles: ClassVar = True
    kind: Literal["experts"] = "experts"
    report_interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=86_400)] = 10.0
    """Interval between a service's reports of routed tokens."""
    newest_weight: Annotated[float, Field(ge=LEAST_PART, le=1)] = 0.3
    """Weight of the newest report in the average popularity, in which older ones fade."""
    least_gain: Annotated[float, Field(ge=LEAST_PART, lt=1)] = 0.1
    """Least part of the busiest device's tokens by which a change of the placement must reduce its load."""
    lasting_reports: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Number of consecutive reports that must show such a gain."""
    cool_down_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Least time between changes of a layer's placement."""
    least_tokens_per_device: Annotated[int, Field(ge=1, le=10**9)] = 256
    """Least number of tokens per device in a report; a report with fewer is added to the next, as noise."""
    order_timeout_s: OrderTimeoutSeconds = DEFAULT_ORDER_TIMEOUT_S

    patience_s: Annotated[float, Field(ge=LEAST_S, le=31_536_000)] = 3_600.0
    """Wait after which a job precedes others, and jobs of users with more ranks are preempted for it once
    they have had their ranks for this time. The job waits for this time for each user whose jobs it
    preempts."""

    def state_bytes(self, zone: Zone) -> int:
        """Return the most bytes of the nodes' state; popularity counts with the jobs."""
        ids = [node.id for node in zone.nodes]
        return _BYTES_PER_NODE * len(ids) + _IDS_PER_NODE * sum(map(len, ids))

    def tick_interval_s(self, slot_s: float) -> float:  # noqa: ARG002
        """Return an interval that does not depend on slots."""
        return min(self.report_interval_s, 10.0)
