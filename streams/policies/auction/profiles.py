"""The profiles of an auction zone: which count for a bid, and what its runs measure."""

from schemas.cells import GpuType, Zone
from schemas.fleet import RunProgressed
from schemas.lora import LoraWorkload
from schemas.profiles import ProfileKey, sequence_class
from solvers.auction.market.demand import ProfiledSpeed, Profiles, least_memory_gib
from streams.cell.profiles import Reading, StepSetting, ZoneProfiles

_OWN_MARGIN = 0.1
"""Part by which a user's own measurements are relaxed: they count like a declaration, for which the user is
responsible, and steps vary."""


def key_of(workload: LoraWorkload, zone: Zone) -> ProfileKey:
    """Return the shape of a bid's task; its precision is that of the zone's base model."""
    shape, base = workload.hyperparameters, zone.base_dimensions
    return ProfileKey(
        base_model=zone.base_model,
        sequence_tokens=sequence_class(shape.sequence_length),
        rank=shape.rank,
        target_modules=shape.target_modules,
        precision="float32" if base is not None and base.activation_bytes == 4 else "bfloat16",
    )


def profiles_of(workload: LoraWorkload, user: str, zone: Zone, profiles: ZoneProfiles) -> Profiles:
    """Return the profiles that count for a user's task, by GPU type.

    Runs of other users count first, and then published profiles. The user's own runs count only for what the
    bid does not declare, like a declaration: a bid is never priced by what its user could have measured on
    purpose. Memory counts at least for what full sequences need: records of other users may be shorter.
    """
    key, batch = key_of(workload, zone), workload.hyperparameters.batch_size
    base = zone.base_dimensions
    least_gib = 0.0 if base is None else least_memory_gib(workload.hyperparameters, base)
    found: dict[str, ProfiledSpeed] = {}
    own = profiles.own(key, user)
    for gpu in zone.gpu_types:
        at = StepSetting(gpu.name, batch)
        if (reading := profiles.others(key, user).get(at)) is not None:
            found[gpu.name] = ProfiledSpeed(
                _speed(reading, at, gpu), _memory_gib(reading, least_gib), "measured"
            )
        elif (reading := profiles.offline(key).get(at)) is not None:
            found[gpu.name] = ProfiledSpeed(
                _speed(reading, at, gpu), _memory_gib(reading, least_gib), "offline"
            )
        elif (reading := own.get(at)) is not None:
            memory_gib = None if reading.memory_gib is None else reading.memory_gib * (1 + _OWN_MARGIN)
            speed = _speed(reading, at, gpu) * (1 - _OWN_MARGIN)
            found[gpu.name] = ProfiledSpeed(speed, memory_gib, "own_runs")
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


def _memory_gib(reading: Reading, least_gib: float) -> float | None:
    return None if reading.memory_gib is None else max(reading.memory_gib, least_gib)


def _speed(reading: Reading, at: StepSetting, gpu: GpuType) -> float:
    return min(reading.samples_per_s(at), gpu.samples_per_s)
