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
    """Experts placed by popularity, which is followed as it drifts (Lina; thesis, chapter 4).

    How experts are placed for a single batch is the serving job's own. The zone decides what stands between
    batches: which devices have which experts to begin with, and how many replicas each.
    """

    shares_base_model: ClassVar = False
    kind: Literal["experts"] = "experts"
    report_interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=86_400)] = 10.0
    """Services report so often what was routed."""
    newest_weight: Annotated[float, Field(ge=LEAST_PART, le=1)] = 0.3
    """Weight of the newest report in the average popularity, in which older ones fade."""
    least_gain: Annotated[float, Field(ge=LEAST_PART, lt=1)] = 0.1
    """A placement changes if the busiest device gets less by this share of its tokens."""
    lasting_reports: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Number of reports in a row that must show such a gain."""
    cool_down_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """A layer's placement changes not so soon after its last change."""
    least_tokens_per_device: Annotated[int, Field(ge=1, le=10**9)] = 256
    """A report of fewer is counted together with the next: its popularity is noise."""
    order_timeout_s: OrderTimeoutSeconds = DEFAULT_ORDER_TIMEOUT_S

    patience_s: Annotated[float, Field(ge=LEAST_S, le=31_536_000)] = 3_600.0
    """A job that has waited for so long comes first, and jobs of users who have more ranks give way for it,
    once they have had theirs for so long. It waits so long for each user from whom it takes some."""

    def state_bytes(self, zone: Zone) -> int:
        """Return the most bytes of the nodes' state; popularity is counted with the jobs."""
        ids = [node.id for node in zone.nodes]
        return _BYTES_PER_NODE * len(ids) + _IDS_PER_NODE * sum(map(len, ids))

    def tick_interval_s(self, slot_s: float) -> float:  # noqa: ARG002
        """Slots are nothing to it."""
        return min(self.report_interval_s, 10.0)
