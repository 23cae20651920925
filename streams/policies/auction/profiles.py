"""The profiles of an auction zone: which count for a bid, and what its runs measure."""

from schemas.auction.evidence import ProfileSource
from schemas.cells import GpuType, Zone
from schemas.fleet import RunProgressed
from schemas.lora import LoraWorkload
from schemas.profiles import ProfileKey, sequence_class
from solvers.auction.market.demand import NO_PROFILES, ProfiledSpeed, Profiles, least_memory_gib
from streams.cell.profiles import Estimate, ZoneProfiles, estimated, precision_of
from streams.cell.readings import Reading, StepSetting

_OWN_MARGIN = 0.1
"""Part by which a user's own measurements are relaxed. Steps vary, and the user is responsible for these
measurements, as for a declaration."""


def key_of(workload: LoraWorkload, zone: Zone) -> ProfileKey:
    """Return the shape of a bid's task; its precision is that of the zone's base model."""
    shape = workload.hyperparameters
    return ProfileKey(
        base_model=zone.base_model,
        sequence_tokens=sequence_class(shape.sequence_length),
        rank=shape.rank,
        target_modules=shape.target_modules,
        precision=precision_of(zone),
    )


def profiles_of(workload: LoraWorkload, user: str, zone: Zone, profiles: ZoneProfiles) -> Profiles:
    """Return the profiles of a user's task, by GPU type: of each type from the first source that has it.

    Runs of other users come first, then published profiles, then the user's own runs. A micro-batch that none
    has measured is interpolated, with a margin of its error; see `Known.of` for what counts before a claim.
    Memory counts at least for what full sequences need: records of other users may be shorter.
    """
    if profiles.is_empty:
        return NO_PROFILES
    key, batch = key_of(workload, zone), workload.hyperparameters.batch_size
    base = zone.base_dimensions
    least_gib = 0.0 if base is None else least_memory_gib(workload.hyperparameters, base)
    others, offline, own = profiles.others(key, user), profiles.offline(key), profiles.own(key, user)
    found: dict[str, ProfiledSpeed] = {}
    for gpu in zone.gpu_types:
        at = StepSetting(gpu.name, batch)
        if (estimate := estimated(others, at)) is not None:
            source: ProfileSource = "measured" if at in others else "interpolated"
            found[gpu.name] = _profiled(estimate, gpu, batch, source, least_gib)
        elif (estimate := estimated(offline, at)) is not None:
            found[gpu.name] = _profiled(estimate, gpu, batch, "offline", least_gib)
        elif (estimate := estimated(own, at)) is not None:
            found[gpu.name] = _profiled(estimate, gpu, batch, "own_runs", 0.0, _OWN_MARGIN)
    return found


def measure(
    workload: LoraWorkload, user: str, report: RunProgressed, gpu: GpuType, zone: Zone, profiles: ZoneProfiles
) -> None:
    """Add a run's measured steps to the profiles of its shape.

    Steps of another micro-batch, precision or class of lengths than the task states are left out: they are
    of another shape. A node is never faster than it is configured.
    """
    steps, key = report.measured, key_of(workload, zone)
    batch = workload.hyperparameters.batch_size
    if (
        steps is None
        or steps.micro_batch_size != batch
        or steps.precision != key.precision
        or not steps.has_length_of(workload.hyperparameters.sequence_length)
    ):
        return
    reading = Reading(
        step_s=max(steps.step_s, batch / gpu.samples_per_s),
        steps=steps.steps,
        tokens_per_sample=steps.tokens_per_sample,
        memory_gib=report.memory_gib or None,
        loader_s=steps.loader_s,
    )
    profiles.measure(key, user, StepSetting(gpu.name, batch), reading)


def _profiled(
    estimate: Estimate, gpu: GpuType, batch: int, source: ProfileSource, least_gib: float, margin: float = 0.0
) -> ProfiledSpeed:
    """Return an estimate on its unfavourable side, and a margin further: slower, and with more memory."""
    memory_gib = estimate.most_memory_gib
    return ProfiledSpeed(
        min(batch / estimate.slowest_step_s, gpu.samples_per_s) * (1 - margin),
        None if memory_gib is None else min(max(memory_gib * (1 + margin), least_gib), gpu.memory_gib),
        source,
    )
