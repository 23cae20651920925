"""Refusals of published profiles that do not fit their zone."""

from schemas.cells import Zone
from schemas.facts import Facts, quoted
from schemas.profiles import ProfileReported


def refusal(event: ProfileReported, zone: Zone) -> Facts | None:
    """Return why a published profile does not count in its zone, with a `case`; None if it counts."""
    if not zone.policy.takes_profiles:
        return {"case": "takes_no_profiles", "zone": zone.id, "policy": zone.policy.kind}
    if zone.policy.shares_base_model and event.key.base_model != zone.base_model:
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
        if point.samples_per_s > gpu.samples_per_s * point.nodes:
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
