"""The settings and the manifest of the policy `inference`."""

from typing import ClassVar, Literal

from schemas.kind import PolicyKind, PolicySettings


class InferencePolicy(PolicySettings):
    """The zone's servers serve requests under a system of their own: the zone owns them, lends them if it is
    configured to, and runs no jobs. Whether they are up is that system's affair."""

    shares_base_model: ClassVar = False

    kind: Literal["inference"] = "inference"


INFERENCE = PolicyKind(
    settings=InferencePolicy,
    zone="streams.policies.inference.zone:InferenceZone",
    workloads=(),
    terms=(),
)
