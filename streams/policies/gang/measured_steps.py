"""The configuration in which the processes of a gang measured its steps."""

from collections.abc import Mapping

from schemas.profiles import MeasuredSteps
from streams.cell.readings import StepSetting


def setting_of(
    steps: MeasuredSteps,
    members: Mapping[str, int],
    gpu_type_of: Mapping[str, str],
    sequence_length: int,
    gpus_per_process: int = 1,
) -> StepSetting | None:
    """Return the configuration of measured steps; None if they do not count for other jobs.

    Steps on several GPU types, of other GPUs than the gang has, or of another class of lengths than its
    sequences do not count: records that are cut short make steps that full ones do not reach.

    Args:
        members: processes by node.
        gpu_type_of: GPU type by node of the zone.
        sequence_length: longest sequence of the job in tokens.
    """
    types = {gpu_type_of.get(node) for node in members}
    gpu_type = types.pop()
    if types or gpu_type is None or steps.gpus != sum(members.values()) * gpus_per_process:
        return None
    if not steps.has_length_of(sequence_length):
        return None
    return StepSetting(gpu_type, steps.micro_batch_size, steps.gpus, len(members))
