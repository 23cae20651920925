"""Times of runs in slots, by the log of a deployment."""

from collections.abc import Sequence

from infra.simulation.simulator import Step
from schemas.fleet import RunFinished, RunStarted
from schemas.lora_commands import RunOrder, SlotAssigned


def pace_of(steps: Sequence[Step], job_ids: frozenset[str]) -> float:
    """Return the speed of the last runs of some jobs, divided by the planned speed. The time of a run counts
    from the start of its slot.

    Raises:
        ValueError: none of the jobs was completed.
    """
    slots: dict[str, tuple[float, float, RunOrder]] = {}
    begun: dict[str, int] = {}
    planned_s = actual_s = 0.0
    for step in steps:
        for decision in step.decisions:
            if isinstance(slot := decision.outcome, SlotAssigned):
                for order in slot.runs:
                    slots[order.run_id] = slot.slot_start_s, slot.slot_end_s, order
        match step.entry.envelope.event:
            case RunStarted() as run:
                begun.setdefault(run.run_id, run.samples_done)
            case RunFinished() as run if run.job_id in job_ids:
                start_s, end_s, order = slots[run.run_id]
                part = (run.samples_done - begun[run.run_id]) / order.quota_samples
                planned_s += part * (end_s - start_s)
                actual_s += step.time_s - start_s
    if not actual_s:
        raise ValueError("no bid was completed: nothing to calibrate by")
    return planned_s / actual_s
