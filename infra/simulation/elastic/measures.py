"""Measures of elastic scheduling (thesis, section 3.7): queuing time, JCT, usage, preemptions."""

from collections.abc import Iterator, Mapping
from typing import Any

from infra.simulation.distribution import Distribution
from infra.simulation.elastic.figures import ElasticResults
from infra.simulation.elastic.job_line import ElasticJobRow
from infra.simulation.elastic.usage import GpuSeconds, GpuUsage, Integral
from infra.simulation.measures import Table
from infra.simulation.simulator import Step
from schemas.base import Outcome
from schemas.cells import CellConfigured
from schemas.changes import NodeRegistered
from schemas.decisions import (
    JobAdmitted,
    JobCompleted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
)
from schemas.elastic.outcomes import JobResized, ServersCleared
from schemas.elastic.workload import ElasticWorkload
from schemas.fleet import RunFinished
from schemas.inference import InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.loans import LoanChanged, ReclaimEnded, ReclaimPlanned


class ElasticMeasures:
    """Measures of an elastic zone, as in `ZoneMeasures`.

    Servers count as in the first configuration of the cell; the load of inference is what lending zones
    report. Times are those of the events, not of the cell's clock, which stands still between two ticks.
    """

    def __init__(self, cell: CellConfigured, zone: str) -> None:
        self._zone = zone
        self._gpus_of_type = {each.id: {gpu.name: gpu.gpus for gpu in each.gpu_types} for each in cell.zones}
        self._gpus_of: dict[str, int] = {}
        gpus: dict[str, int] = {}
        for each in cell.zones:
            for node in each.nodes:
                self._gpus_of[node.id] = self._gpus_of_type[each.id][node.gpu_type]
            gpus[each.id] = sum(self._gpus_of[node.id] for node in each.nodes)
        self._own = {node.id for each in cell.zones if each.id == zone for node in each.nodes}
        self._own_gpus = gpus[zone]
        self._lent_gpus = {
            each.id: gpus[each.id] for each in cell.zones if each.lending is not None and each.id != zone
        }
        """All GPUs of each zone that lends."""
        self._serving = dict.fromkeys(self._lent_gpus, 0.0)
        self._start_s = self._end_s = cell.epoch_s
        self._jobs: dict[str, ElasticJobRow] = {}
        self._usage = GpuUsage(cell.epoch_s)
        self._until_last_input = (cell.epoch_s, GpuSeconds())
        self._placed: dict[str, list[tuple[Integral, int]]] = {}
        """Uses of GPUs by each running job."""
        self._borrowed: set[str] = set()
        """Servers that were ever on loan to the zone."""
        self._reclaims = self._reclaimed_servers = self._reclaimed_gpus = self._overdue = 0
        self._preempting_servers = self._collateral_gpus = 0

    def take(self, step: Step) -> None:
        """Add the next step of the simulation."""
        time_s, event = step.time_s, step.entry.envelope.event
        self._end_s = time_s
        self._usage.pass_time(time_s)
        match event:
            case JobSubmitted(zone=self._zone, workload=ElasticWorkload() as workload):
                self._jobs.setdefault(
                    event.job_id, ElasticJobRow.of(event.job_id, event.user, workload, time_s)
                )
                self._until_last_input = (time_s, self._usage.until(time_s))
            case InferenceLoadReported() if event.zone in self._lent_gpus:
                serving = event.load * self._lent_gpus[event.zone]
                self._usage.serving.change(time_s, serving - self._serving[event.zone])
                self._serving[event.zone] = serving
                self._until_last_input = (time_s, self._usage.until(time_s))
            case RunFinished() if event.job_id in self._jobs:
                self._jobs[event.job_id].ended_s = time_s
            case NodeRegistered() if event.gpu_type in self._gpus_of_type.get(event.zone, {}):
                self._gpus_of.setdefault(event.node, self._gpus_of_type[event.zone][event.gpu_type])
        for decision in step.decisions:
            self._apply(time_s, decision.outcome)

    def figures(self) -> ElasticResults:
        """Return the results so far."""
        done = [job for job in self._jobs.values() if job.state == "completed"]
        measured_s, used = self._until_last_input
        span_s = measured_s - self._start_s
        own, lent = self._own_gpus * span_s, sum(self._lent_gpus.values()) * span_s
        preemptions = sum(job.preemptions for job in self._jobs.values())
        return ElasticResults(
            jobs=len(self._jobs),
            completed=len(done),
            queuing=Distribution.of([job.queuing_s for job in done]),
            jct=Distribution.of([job.jct_s for job in done if job.jct_s is not None]),
            span_s=span_s,
            training_usage=_part(used.own, own),
            overall_usage=_part(used.own + used.on_loaned + used.serving, own + lent),
            on_loan_usage=_part(used.on_loaned, used.loaned),
            preemptions=preemptions,
            preemption_ratio=_part(preemptions, len(self._jobs)),
            resizes=sum(job.resizes for job in self._jobs.values()),
            reclaims=self._reclaims,
            reclaimed_servers=self._reclaimed_servers,
            flexible_servers=self._reclaimed_servers - self._preempting_servers,
            collateral_damage=_part(self._collateral_gpus, self._reclaimed_gpus),
            overdue_reclaims=self._overdue,
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts for a summary."""
        return self.figures().rows()

    def as_json(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        return self.figures().as_json()

    def tables(self) -> Mapping[str, Table]:
        """Return `jobs`, a row per job in the order of submission, and `usage`, mean GPUs by the hour."""
        lent_gpus = sum(self._lent_gpus.values())
        usage = [
            {
                "start_s": start_s,
                "length_s": length_s,
                "own_gpus": self._own_gpus,
                "used_own_gpus": used.own / length_s,
                "loaned_gpus": used.loaned / length_s,
                "used_loaned_gpus": used.on_loaned / length_s,
                "inference_gpus": lent_gpus,
                "serving_gpus": used.serving / length_s,
            }
            for start_s, length_s, used in self._usage.by_hour(self._end_s)
        ]
        return {"jobs": [job.as_row() for job in self._jobs.values()], "usage": usage}

    def _apply(self, time_s: float, outcome: Outcome) -> None:
        match outcome:
            case JobAdmitted() if (job := self._jobs.get(outcome.job_id)) is not None:
                job.state, job.waits_since_s = "admitted", time_s
            case JobResized(zone=self._zone):
                self._resize(time_s, outcome)
            case JobCompleted() | JobRefunded() | JobWithdrawn() | JobRejected():
                job = self._jobs.get(outcome.job_id)
                if job is not None and not outcome.is_of_another_job:
                    job.end(time_s, outcome.STATE)
                    self._use(time_s, outcome.job_id, [])
            case LoanChanged(borrower=self._zone):
                self._borrowed.add(outcome.server)
            case NodeMoved() if outcome.node not in self._own and outcome.node in self._gpus_of:
                gpus = self._gpus_of[outcome.node]
                arrives, leaves = outcome.to_zone == self._zone, outcome.from_zone == self._zone
                self._usage.loaned.change(time_s, gpus * (arrives - leaves))
            case ReclaimPlanned():
                servers = [server for server in outcome.servers if server in self._borrowed]
                self._reclaims += bool(servers)
                self._reclaimed_servers += len(servers)
                self._reclaimed_gpus += sum(self._gpus_of[server] for server in servers)
            case ReclaimEnded(status="overdue") if self._borrowed.intersection(outcome.missing):
                self._overdue += 1
            case ServersCleared(zone=self._zone):
                self._preempting_servers += outcome.preempting_servers
                self._collateral_gpus += outcome.collateral_gpus

    def _resize(self, time_s: float, outcome: JobResized) -> None:
        job = self._jobs[outcome.job_id]
        job.resize(time_s, outcome)
        servers = [(each.node, each.workers * job.gpus_per_worker) for each in outcome.servers]
        job.was_on_loaned |= any(server not in self._own for server, _ in servers)
        used = self._usage
        self._use(
            time_s,
            outcome.job_id,
            [(used.own if server in self._own else used.on_loaned, gpus) for server, gpus in servers],
        )

    def _use(self, time_s: float, job_id: str, uses: list[tuple[Integral, int]]) -> None:
        for integral, gpus in self._placed.pop(job_id, []):
            integral.change(time_s, -gpus)
        for integral, gpus in uses:
            integral.change(time_s, gpus)
        if uses:
            self._placed[job_id] = uses


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
