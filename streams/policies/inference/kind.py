"""The settings and the manifest of the policy `inference`."""

from typing import ClassVar, Literal

from schemas.kind import PolicyKind, PolicySettings

_TICK_INTERVAL_S = 60.0


class InferencePolicy(PolicySettings):
    """The zone's servers serve requests under a system of their own: the zone owns them, lends them if it is
    configured to, and runs no jobs. Whether they are up is that system's affair."""

    shares_base_model: ClassVar = False

    kind: Literal["inference"] = "inference"

    def tick_interval_s(self, slot_s: float) -> float:  # noqa: ARG002
        """It decides nothing; deadlines of reclaims are looked at with each tick of the cell."""
        return _TICK_INTERVAL_S


INFERENCE = PolicyKind(
    settings=InferencePolicy,
    zone="streams.policies.inference.zone:InferenceZone",
    workloads=(),
    terms=(),
)
