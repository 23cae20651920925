"""Descriptions of the elastic policy's own types: workloads, sizes of jobs, cleared servers, forecasts."""

from collections.abc import Iterator, Sequence

from infra.text import counted, first_of, lasting, written
from infra.views.elastic.figures import ElasticFiguresView, pools_of, servers_of
from infra.views.elastic.sentences import SENTENCES
from infra.views.policy import PolicyView
from infra.views.sentences import sentence
from schemas.base import Event, Outcome, Record
from schemas.decisions import JobAdmitted, JobQuoted
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.elastic.outcomes import (
    ElasticForecast,
    JobProfiled,
    JobResized,
    QueuedJob,
    ServersCleared,
    SpeedFrom,
)
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticTerms, ElasticWorkload

_MOST_NAMES = 5


class ElasticView(PolicyView):
    """`PolicyView` of the elastic policy."""

    sentences = SENTENCES
    figures = ElasticFiguresView()

    def part_of(self, record: Event | Outcome, job_id: str) -> Event | Outcome | None:
        """Return the part of a record about a job. A clearing of servers is returned whole, since it names
        the jobs that are preempted together. Of a zone's staffing, it is the queue up to the job, or the
        reclaims that would preempt it."""
        match record:
            case ServersCleared() if job_id in (*record.preempted, *record.scaled_in):
                return record
            case ZoneStaffed():
                return _staffing_of(record, job_id)
        return None

    def words(self, record: Record) -> list[str] | None:
        """Return words for records about one job alone, as `part_of` returns them."""
        match record:
            case ElasticWorkload():
                return list(_workload(record))
            case ElasticTerms():
                return ["queues it, without a bid or a deadline"]
            case QueuedJob():
                return [_queue_place(record)]
            case JobAdmitted(evidence=QueuedJob() as place):
                return ["admitted to the queue", _queue_place(place)]
            case ElasticForecast():
                return [_forecast(record)]
            case JobQuoted(evidence=ElasticForecast() as forecast):
                jobs = f"jobs that wait now: {forecast.jobs_waiting}"
                return [
                    _forecast(forecast),
                    f"as things stand: later jobs, loans and reclaims change it; {jobs}",
                ]
            case JobResized():
                return list(_resized(record))
            case JobProfiled():
                return list(_profiled(record))
            case ServersCleared():
                return list(_cleared(record))
            case ZoneStaffed():
                return list(_staffed(record))
            case WorkersAssigned():
                here = sum(member.workers for member in record.members if member.node == record.node)
                workers = counted(sum(member.workers for member in record.members), "worker")
                doing = "starts" if record.resumes else "continues with"
                at = f"generation {record.generation}, from {record.resume_samples} samples"
                return [f"{record.node} {doing} {here} of {workers}: {at}"]
            case WorkersReleased():
                by = "" if record.by_s is None else f", by {written(record.by_s)}"
                return [
                    f"{record.node} gives up its workers of generation {record.generation} "
                    f"({record.reason}){by}"
                ]
        return None

    def happening(self, outcome: Outcome) -> str | None:
        """Return words for changes of workers, cleared servers, and the zone's state."""
        match outcome:
            case JobAdmitted(evidence=QueuedJob() as place):
                others = counted(place.jobs_waiting, "other job")
                return f"{outcome.job_id} queued with {others}: takes {lasting(place.running_s)} at least"
            case JobResized():
                return f"{outcome.job_id} {next(_resized(outcome))}"
            case JobProfiled():
                return f"{outcome.job_id} {next(_profiled(outcome))}"
            case ServersCleared():
                return f"zone {outcome.zone}: {next(_cleared(outcome))}"
            case ZoneStaffed():
                return f"zone {outcome.zone}: {next(_staffed(outcome))}"
        return None


def _workload(job: ElasticWorkload) -> Iterator[str]:
    trains = "all weights" if job.adapter is None else f"an adapter of rank {job.adapter.rank}"
    yield f"{job.work_samples} samples of {job.dataset.path}, to train {trains} of {job.model}"
    size = (
        counted(job.max_workers, "worker")
        if job.min_workers == job.max_workers
        else f"{job.min_workers} to {job.max_workers} workers"
    )
    speed = "speed to be measured"
    if job.samples_per_s is not None:
        scaling = "linear in workers" if not job.speedup else f"{job.speedup[-1]:g} times that at most"
        speed = f"{job.samples_per_s:g} samples/s with one, {scaling}"
    yield (
        f"{size} of {counted(job.gpus_per_worker, 'GPU')} each; {speed}; "
        f"global batch {job.hyperparameters.global_batch_size}"
    )
    abilities = {
        "fungible: may run on slower GPUs": job.fungible,
        "heterogeneous: on several GPU types at a time": job.heterogeneous,
        "keeps no checkpoints: starts over when it is preempted": not job.keeps_checkpoints,
    }
    yield from (words for words, has_it in abilities.items() if has_it)


def _queue_place(place: QueuedJob) -> str:
    return (
        f"other jobs that wait: {place.jobs_waiting}, shorter ones go first; it takes "
        f"{lasting(place.running_s)} with all the workers that it can use"
        f"{_sureness(place.speed_from, place.duration_error_pct)}"
    )


def _sureness(speed_from: SpeedFrom, error_pct: float | None) -> str:
    """Return how sure a running time is; empty for a declared one."""
    within = "" if error_pct is None else f", within {error_pct:.0f} %"
    match speed_from:
        case "measured":
            return f" (by measured steps of its kind{within})"
        case "offline":
            return f" (by a published profile{within})"
        case "assumed":
            return " (assumed until it is measured)"
        case "declared":
            return ""


def _forecast(forecast: ElasticForecast) -> str:
    first, last = written(forecast.earliest_end_s), written(forecast.latest_end_s)
    end = f"ends at {first}" if first == last else f"ends between {first} and {last}"
    sureness = _sureness(forecast.speed_from, forecast.duration_error_pct)
    return f"starts at {written(forecast.start_s)}, {end}{sureness}"


def _resized(size: JobResized) -> Iterator[str]:
    """Yield a line about the change, and further lines about its reason and the remaining work."""
    difference = size.workers - size.workers_before
    workers, before = counted(size.workers, "worker"), counted(size.workers_before, "worker")
    where = f" on {servers_of(size.servers)} ({pools_of(size)})" if size.servers else ""
    why = sentence(size)
    match size.reason:
        case "started" | "resumed":
            yield f"{size.reason} with {workers}{where}"
        case "scaled_out":
            yield f"scaled out to {workers}, {difference} more{where}"
        case "scaled_in":
            yield f"scaled in to {workers}, {-difference} fewer{where}"
        case "moved":
            yield f"keeps {workers}, in other places{where}"
        case "servers_reclaimed":
            yield f"continues with {workers}, {-difference} fewer{where}: {why}"
        case "preempted":
            yield f"preempted, loses {before} and is queued again: {why}"
        case "node_lost":
            yield f"loses {before} with a node and is queued again: {why}"
        case "run_failed":
            yield f"is queued again, as a run failed: {why}"
        case "gave_way":
            yield f"gives way, loses {before} and is queued again: {why}"
        case "stopped":
            yield f"its {before} are ordered to stop: {why}"
    if size.reason in ("started", "resumed") and why:
        yield why
    if size.reason == "scaled_in" and why:
        yield f"makes way for {why}"
    if size.reason == "preempted":
        yield "without its workers there it would be below its base demand"
    if size.reason != "stopped":
        left = lasting(size.remaining_s)
        with_them = "with these workers" if size.workers else "with its base demand, once it runs"
        yield f"{size.samples_done} samples known to be done; the rest takes {left} {with_them}"


def _profiled(profile: JobProfiled) -> Iterator[str]:
    yield (
        f"measured: {profile.samples_per_s:g} samples/s with {counted(profile.workers, 'worker')}, "
        f"{profile.expected_samples_per_s:g} {profile.expected_from}"
    )
    within = "" if profile.duration_error_pct is None else f", within {profile.duration_error_pct:.0f} %"
    yield f"the rest takes {lasting(profile.remaining_s)} with these workers{within}"
    if profile.profile_gpu_s:
        yield f"GPU time to measure it: {lasting(profile.profile_gpu_s)}"


def _cleared(cleared: ServersCleared) -> Iterator[str]:
    by = "" if cleared.by_s is None else f", by {written(cleared.by_s)}"
    hit = f"preempts {_names(cleared.preempted)}" if cleared.preempted else "preempts no job"
    eased = f", scales in {_names(cleared.scaled_in)}" if cleared.scaled_in else ""
    yield f"to give back {_names(cleared.servers)}{by}: {hit}{eased}"
    free = len(cleared.servers) - cleared.preempting_servers
    yield f"servers that cost no job its base demand: {free} of {len(cleared.servers)}"
    yield (
        f"spared: {counted(cleared.spared_jobs, 'job')} on other loaned servers; left idle elsewhere by "
        f"preempted jobs: {counted(cleared.collateral_gpus, 'GPU')}"
    )


def _staffed(staffed: ZoneStaffed) -> Iterator[str]:
    if not (staffed.queue or staffed.turns or staffed.on_loan):
        yield "no job waits, and no server is on loan"
    if staffed.queue:
        last = staffed.queue[-1]
        yield (
            f"number {len(staffed.queue)} in the queue: needs {counted(last.base_gpus, 'GPU')} to start, "
            f"and takes {lasting(last.running_s)} with all the workers that it can use"
        )
    for turn in staffed.turns:
        yield (
            f"{turn.job_id} has waited for too long and comes before shorter jobs; held for it until "
            f"{written(turn.by_s)}: {_names(turn.held, of=turn.servers)}"
        )
    if staffed.on_loan:
        yield (
            f"if servers are reclaimed now: {staffed.harmless_returns} of {staffed.on_loan} on loan can go "
            "without a preemption"
        )
    for effect in staffed.next_reclaims:
        yield (
            f"  a reclaim of {effect.servers} would preempt {_names(effect.preempts)}, on "
            f"{_names(effect.preempting)}"
        )


def _names(names: Sequence[str], of: int = 0) -> str:
    return first_of(names, _MOST_NAMES, of)


def _staffing_of(staffed: ZoneStaffed, job_id: str) -> ZoneStaffed | None:
    places = [number for number, job in enumerate(staffed.queue, start=1) if job.job_id == job_id]
    if places:
        return staffed.model_copy(update={"queue": staffed.queue[: places[0]], "next_reclaims": ()})
    hits = tuple(effect for effect in staffed.next_reclaims if job_id in effect.preempts)
    if hits:
        return staffed.model_copy(update={"queue": (), "next_reclaims": hits})
    return None
