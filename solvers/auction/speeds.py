"""How fast a plan takes a task to be on each GPU type: by its user's word, or by the zone's own measure."""

from schemas.cells import ThroughputRow, Zone
from schemas.decisions import CountedSpeed
from schemas.jobs import LoraHyperparameters, Task


def counted_speeds(task: Task, zone: Zone) -> tuple[CountedSpeed, ...]:
    """The speed per GPU type that the task may run on, by type; none where nothing is known.

    What a user declares says which types the task runs on, and how fast on those that the zone has not
    measured. Where it has, the declaration counts up to the measured speed and no further.
    """
    measured = {row.gpu_type: row.samples_per_s for row in covering_rows(task.hyperparameters, zone)}
    declared = task.speed_samples_per_s
    if declared is None:
        return tuple(CountedSpeed(gpu_type=t, samples_per_s=s, source="row") for t, s in measured.items())
    return tuple(
        _counted(gpu_type, declared[gpu_type], measured.get(gpu_type)) for gpu_type in sorted(declared)
    )


def rests_on_declaration(task: Task, zone: Zone, gpu_type: str) -> bool:
    """Whether the user's word alone says how fast the task is on a type that it may run on: `declared`."""
    return task.speed_samples_per_s is not None and all(
        row.gpu_type != gpu_type for row in covering_rows(task.hyperparameters, zone)
    )


def _counted(gpu_type: str, declared: float, measured: float | None) -> CountedSpeed:
    if measured is None:
        return CountedSpeed(gpu_type=gpu_type, samples_per_s=declared, source="declared")
    if declared <= measured:
        return CountedSpeed(gpu_type=gpu_type, samples_per_s=declared, source="declared_within_row")
    return CountedSpeed(gpu_type=gpu_type, samples_per_s=measured, source="capped_by_row")


def covering_rows(shape: LoraHyperparameters, zone: Zone) -> list[ThroughputRow]:
    """Per GPU type the least row that covers the shape: a larger rank or sequence is slower, never faster."""
    best: dict[str, ThroughputRow] = {}
    for row in zone.throughput:
        covers = (
            row.batch_size == shape.batch_size
            and row.rank >= shape.rank
            and row.sequence_length >= shape.sequence_length
        )
        held = best.get(row.gpu_type)
        if covers and (held is None or (row.sequence_length, row.rank) < (held.sequence_length, held.rank)):
            best[row.gpu_type] = row
    return [best[gpu_type] for gpu_type in sorted(best)]
