"""The settings and the manifest of the policy `inference`."""

from typing import ClassVar, Literal

from schemas.kind import PolicyKind, PolicySettings

_TICK_INTERVAL_S = 60.0


class InferencePolicy(PolicySettings):
    """Settings of a zone whose servers serve requests under another system. The zone owns the servers, lends
    them if it is configured to, and runs no jobs. The other system keeps them up."""

    shares_base_model: ClassVar = False

    kind: Literal["inference"] = "inference"

    def tick_interval_s(self, slot_s: float) -> float:  # noqa: ARG002
        """Return an interval for deadlines of reclaims, which each tick of the cell checks."""
        return _TICK_INTERVAL_S


INFERENCE = PolicyKind(
    settings=InferencePolicy,
    zone="streams.policies.inference.zone:InferenceZone",
    workloads=(),
    terms=(),
)
