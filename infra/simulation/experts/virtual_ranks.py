"""The simulated runner of mixture-of-experts models: it sends the same reports, but runs no model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from infra.simulation.event_queue import Moments
from infra.simulation.experts.model import SimulatedModel
from infra.simulation.gangs import VirtualGangs, VirtualJob
from schemas.commands import Command
from schemas.experts.commands import ExpertsPlaced, LayerPlacement, RanksAssigned, RanksReleased
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import RunFinished, RunProgressed, RunStarted

START_S = 20.0
"""Time until a model is loaded on all ranks."""
PROFILE_ACCURACY = 0.6
"""Accuracy of every profile stage."""


@dataclass
class _Job(VirtualJob):
    """Progress of a job on its ranks."""

    revision: int = 0
    layers: dict[int, list[list[int]]] = field(default_factory=dict)
    """Experts on each device, by layer."""


class VirtualRanks(VirtualGangs[_Job]):
    """See `VirtualGangs`. The placement of experts makes a service faster or slower."""

    def reports(self, command: Command, time_s: float) -> Moments:
        """Yield a leader's reports of all ranks until they are released, or the report of a released one."""
        match command:
            case RanksAssigned() if command.node == command.members[0].node:
                yield from self._run(command, time_s)
            case RanksReleased():
                yield from self.release(command, time_s)
            case ExpertsPlaced():
                self._place(command)

    def _run(self, command: RanksAssigned, time_s: float) -> Moments:
        job = self._jobs.setdefault(command.job_id, _Job())
        job.generation, job.samples_done = command.generation, float(command.resume_samples)
        job.revision, job.layers = command.revision, _lists(command.placement)
        now_s = job.since_s = time_s + START_S
        yield now_s, None
        place = self.run_fields(command.node, command.run_id, command.job_id)
        yield now_s, RunStarted(**place, samples_done=command.resume_samples)
        model, total = SimulatedModel.of(command.job_id, command.workload), command.workload.total_samples
        unprofiled = model.profile_batches
        while True:
            samples_per_s = self._pace * model.samples_per_s(job.layers, now_s)
            left = math.inf if total is None else max(total - job.samples_done, 0.0)
            over_s = min(now_s + left / samples_per_s, max(model.until_s, now_s))
            began_s, now_s = now_s, min(now_s + command.report_interval_s, over_s)
            yield now_s, None
            samples = samples_per_s * (now_s - began_s)
            job.samples_done += samples
            if now_s == over_s:
                yield from self._finish(command, now_s, left - samples <= 0.5)
                return
            batches = max(1, round(samples / model.batch_samples))
            report = {**place, "samples_done": int(job.samples_done), "layers": model.routing(batches, now_s)}
            if unprofiled <= 0:
                report |= {"batches": batches, "interval_s": now_s - began_s, "revision": job.revision}
                yield now_s, ExpertsRouted(**report)
                continue
            unprofiled -= batches
            if unprofiled <= 0:
                yield (
                    now_s,
                    ExpertsProfiled(**report, path_length=1, paths=batches, accuracy=PROFILE_ACCURACY),
                )

    def _finish(self, command: RanksAssigned, time_s: float, is_done: bool) -> Moments:
        """Report the end of the leader and of the other members."""
        job, total = self._jobs[command.job_id], command.workload.total_samples
        done = total if is_done and total is not None else int(job.samples_done)
        leader, *others = (
            self.run_fields(member.node, command.run_id, command.job_id) for member in command.members
        )
        yield time_s, RunFinished(**leader, samples_done=done)
        for member in others:
            yield time_s, RunProgressed(**member, samples_done=done, node_s=0.0, complete=True)

    def _place(self, command: ExpertsPlaced) -> None:
        job = self._jobs.get(command.job_id, _Job())
        if job.generation == command.generation and job.revision < command.revision:
            job.revision = command.revision
            job.layers.update(_lists(command.layers))


def _lists(placement: Sequence[LayerPlacement]) -> dict[int, list[list[int]]]:
    return {layer.layer: [list(row) for row in layer.devices] for layer in placement}
