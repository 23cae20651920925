"""The jobs of a zone and their ranks: who has devices, who is to give them up, and who is over."""

import math
from collections import Counter
from collections.abc import Iterator

from schemas.base import Outcome
from schemas.experts.workload import MoeServeWorkload
from schemas.facts import Facts
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from streams.cell.live_bytes import LiveBytes
from streams.policies.experts.claims import Holdings
from streams.policies.experts.job import MoeJob
from streams.policies.experts.outcomes import Why, assigned, changed, decided, released
from streams.policies.experts.turns import Turns
from streams.policies.gang.room import JobsRoom
from streams.policies.gpus import Gpus
from streams.policies.orders import OrderClock

_LONGEST_QUIET_S = 8_640.0
"""For so long a service is expected to say nothing after its begin, at most."""


class Ranks:
    """Ranks of the jobs of one zone."""

    def __init__(self, zone: str, gpus: Gpus, live: LiveBytes, orders: OrderClock) -> None:
        self.zone = zone
        self.gpus = gpus
        self.orders = orders
        self.jobs: dict[str, MoeJob] = {}
        """By id, in the order of their submission."""
        self.turns = Turns()
        self.arrivals = 0
        """Number of arrivals of jobs, by which they are ordered."""
        self.time_s = 0.0
        self.report_interval_s = 0.0
        self.patience_s = math.inf
        self.has_changed = False
        """Whether anything has happened since devices were last given out that could change who gets some."""
        self.has_news = False
        """Whether the zone stands otherwise than when it was last told."""
        self.sizes: Counter[int] = Counter()
        """Number of jobs by number of ranks; only sizes of at least one job."""
        self._next_claim_s = -math.inf
        """Before then no job can have a claim because time passes."""
        self._next_retry_s = -math.inf
        """When a job that did not begin may have another run, by `orders`."""
        self.room = JobsRoom(live)

    @property
    def waiting(self) -> list[MoeJob]:
        """Jobs that can be given ranks, in the order of their submission."""
        elapsed_s = self.orders.elapsed_s
        return [job for job in self.jobs.values() if job.waits and job.retry_s <= elapsed_s]

    @property
    def jobs_without_ranks(self) -> int:
        """Number of jobs that have none and are not ending."""
        return sum(not job.members and not job.is_ending for job in self.jobs.values())

    @property
    def held_devices(self) -> int:
        """Idle ones, or on their way, that are kept for jobs for which others have given way."""
        return sum(job.workload.ranks for job in self.jobs.values() if job.is_awaited)

    def add(self, job: MoeJob) -> None:
        """Keep a job."""
        self.jobs[job.job_id] = job
        self.sizes[job.workload.ranks] += 1
        self.gpus.hold(job.job_id, {**job.members, **job.clearing})
        self.has_changed = True
        self.recount(job)

    def recount(self, job: MoeJob) -> None:
        """A job takes another part of the snapshot than before."""
        self.room.count(job, job.state_bytes)
        self.has_news = True

    def begin_all(self) -> Iterator[Outcome]:
        """Give idle devices to jobs that wait, in the order of their turns, and have others give way for one
        that has waited for too long."""
        is_retry_due = self.orders.elapsed_s >= self._next_retry_s
        if not self.has_changed and self.time_s < self._next_claim_s and not is_retry_due:
            return
        retries_s = (job.retry_s for job in self.jobs.values() if job.waits)
        self._next_retry_s = min((at for at in retries_s if at > self.orders.elapsed_s), default=math.inf)
        self.has_changed = False
        holdings = Holdings(self.jobs.values(), self.gpus, self.turns, self.time_s, self.patience_s)
        line = self.turns.line(self.waiting, self.gpus.open, holdings.holds_up)
        heads = line.heads()
        claim = holdings.first_claim(heads)
        self._next_claim_s = holdings.next_s(heads)
        if claim is not None:
            line.put_first(claim.job)
            for other in claim.gives_way:
                yield from self._give_way(other, claim.job)
        while (idle := self.gpus.idle()) and (job := line.next(idle)) is not None:
            yield from self._begin(job)

    def _give_way(self, job: MoeJob, other: MoeJob) -> Iterator[Outcome]:
        """A job waits again as if it had been submitted now, so that another begins."""
        other.is_awaited = True
        waited_s = self.time_s - other.since_s
        facts: Facts = {"job_id": other.job_id, "user": other.job.user, "waited_s": waited_s}
        yield from self.put_back(job, Why("gave_way", facts))
        job.had_s, job.passed = None, 0
        job.arrival = self.arrivals
        self.arrivals += 1
        self.jobs[job.job_id] = self.jobs.pop(job.job_id)
        self.turns.give(job.job.user)

    def _begin(self, job: MoeJob) -> Iterator[Outcome]:
        members = self.gpus.take(job.job_id, job.workload.ranks, {})
        if members is None:
            raise AssertionError(f"job {job.job_id} was to have {job.workload.ranks} devices, idle are fewer")
        job.members, job.leader = members, next(iter(members))
        job.generation += 1
        job.since_s = self.time_s
        job.is_profiled = job.is_awaited = False
        job.hear(self.orders.elapsed_s)
        self.has_changed = True
        yield changed(self.zone, job, Why("resumed" if job.generation > 1 else "started"))
        if job.popularity is not None:
            layers = job.popularity.resize(job.cluster, self.time_s)
            if layers:
                yield decided(self.zone, job, job.popularity.revision, "devices_changed", layers)
        self.recount(job)
        yield from assigned(self.zone, job, self.report_interval_s)

    def give_up_silent(self) -> Iterator[Outcome]:
        """Take runs for failed, or for ended where nodes were ordered to end them, without reports."""
        for job in list(self.jobs.values()):
            if not self.orders.is_lost(job.heard_s, job.quiet_s):
                continue
            if job.members:
                failed = self.orders.failure(job.job, job.run_id, job.leader, job.heard_s)
                yield from self._fail(job, failed, backs_off=True)
            else:
                for node in list(job.clearing):
                    yield from self._cleared(job, node)

    def report(self, job: MoeJob, report: RunReport, backs_off: bool = False) -> Iterator[Outcome]:
        """A node that has ranks of the present generation, or is to give them up, reports its run.

        Args:
            backs_off: whether the job waits before it begins anew, if its run has failed.
        """
        if report.node in job.clearing:
            yield from self._clear(job, report)
            return
        leads = report.node == job.leader
        if leads:
            self._hear_leader(job, report)
        match report:
            case RunFailed():
                yield from self._fail(job, report, backs_off)
            case RunFinished() if leads:
                job.progress(report.samples_done)
                job.finished = report
                self._let_go(job)
                yield from self._cleared(job, report.node)
            case RunProgressed(complete=True) if leads:
                job.progress(report.samples_done)
                why = Why("run_failed", {"case": "ended", "node": report.node})
                yield from self._take_back(job, why, without=report.node)
                yield from self._cleared(job, report.node)
            case RunFinished() | RunProgressed(complete=True):
                job.done[report.node] = None
                self.recount(job)
            case RunStarted() | RunProgressed() if leads:
                job.progress(report.samples_done)

    def _hear_leader(self, job: MoeJob, report: RunReport) -> None:
        """Note a leader's report. Once it has reported progress it repeats this; before, a service may be
        silent until it ends."""
        quiet_s = job.quiet_s
        if isinstance(report, RunStarted):
            is_service = isinstance(job.workload, MoeServeWorkload)
            ends_s = math.inf if job.until_s is None else job.until_s
            quiet_s = min(max(ends_s - self.time_s, 0.0), _LONGEST_QUIET_S) if is_service else 0.0
        elif not report.ends_run:
            quiet_s = 0.0
        job.hear(self.orders.elapsed_s, quiet_s)

    def give_up(self, job: MoeJob) -> Iterator[Outcome]:
        """The user of a job withdraws it."""
        job.withdraw()
        yield from self.put_back(job, Why("withdrawn"))

    def end_in_time(self, job: MoeJob) -> Iterator[Outcome]:
        """A service has reached its time."""
        job.is_time_over = True
        yield from self.put_back(job, Why("ended"))

    def put_back(self, job: MoeJob, why: Why) -> Iterator[Outcome]:
        """Take all ranks from a job. It waits until it can begin anew, unless it is ending."""
        if job.members:
            yield from self._take_back(job, why)
        yield from self._settle(job)

    def lose(self, job: MoeJob, node: str, why: Why) -> Iterator[Outcome]:
        """A node has no ranks of the job any more, though it was not told to give them up. It is told so all
        the same: one that was only silent hears of it when it is back."""
        if node in job.working:
            yield from self._take_back(job, why)
        if node in job.clearing:
            yield from self._cleared(job, node)

    def _fail(self, job: MoeJob, report: RunFailed, backs_off: bool = False) -> Iterator[Outcome]:
        facts = job.fail(report, self.orders, backs_off)
        yield from self._take_back(job, Why("run_failed", facts), without=report.node)
        yield from self._cleared(job, report.node)

    def _clear(self, job: MoeJob, report: RunReport) -> Iterator[Outcome]:
        """A node says that the ranks are gone that it was to give up, and the leader how far they came."""
        if isinstance(report, RunStarted) or (isinstance(report, RunProgressed) and not report.complete):
            return
        is_open = job.finished is None and job.given_up is None
        if report.node == job.leader and is_open and not isinstance(report, RunFailed):
            job.progress(report.samples_done)
            job.finished = report if isinstance(report, RunFinished) else None
        yield from self._cleared(job, report.node)

    def _take_back(self, job: MoeJob, why: Why, without: str | None = None) -> Iterator[Outcome]:
        """Have all members give their ranks up, but for one that has ended them."""
        working = job.working
        self._let_go(job)
        yield changed(self.zone, job, why)
        for node in working:
            if node != without:
                yield released(self.zone, job, node, why)

    def _let_go(self, job: MoeJob) -> None:
        """The job has no members any more; those that it had are still to say that their ranks are gone."""
        job.clearing = {node: job.members[node] for node in job.working}
        job.had_s, job.since_s = job.had_ranks_s(self.time_s), self.time_s
        job.hear(self.orders.elapsed_s)
        self.gpus.give_back(job.job_id, job.done)
        job.members, job.done = {}, {}

    def _cleared(self, job: MoeJob, node: str) -> Iterator[Outcome]:
        del job.clearing[node]
        self.gpus.give_back(job.job_id, (node,))
        yield from self._settle(job)

    def _settle(self, job: MoeJob) -> Iterator[Outcome]:
        """End a job that is ending as soon as its last rank is gone."""
        self.has_changed = True
        if not job.is_ending or job.members or job.clearing:
            self.recount(job)
            return
        user = job.job.user
        del self.jobs[job.job_id]
        self.sizes -= Counter((job.workload.ranks,))
        self.room.remove(job)
        if user not in self.room.held:
            self.turns.leave(user)
        self.has_news = True
        yield job.ended(self.zone)
