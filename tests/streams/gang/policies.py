"""Gangs of each policy, for the model: how their jobs begin and change size, and their words for causes."""

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from schemas.base import Outcome
from schemas.cells import CellConfigured
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.elastic.outcomes import JobResized
from schemas.experts.commands import RanksAssigned, RanksReleased
from schemas.experts.outcomes import RanksChanged
from schemas.experts.workload import ExpertsTerms
from schemas.facts import NO_FACTS, Fact
from schemas.kind import Terms, Workload
from solvers.elastic.cluster import Cluster
from solvers.elastic.cluster_parts import Kind
from solvers.elastic.demand import WorkerGrant
from solvers.elastic.lent import hosted_job
from streams.cell.jobs import Job
from streams.cell.layout import Layout
from streams.cell.live_bytes import LiveBytes
from streams.cell.nodes import NodePool
from streams.cell.outcomes import Outcomes
from streams.cell.profiles import ProfileStore, ZoneProfiles
from streams.cell.states import from_state, state_of
from streams.policies.elastic.elastic_job import ElasticJob
from streams.policies.elastic.invariants import broken_invariants
from streams.policies.elastic.profiles import ElasticProfiles
from streams.policies.elastic.sizes import ServerSizes
from streams.policies.elastic.workforce import Workforce
from streams.policies.experts.moe_job import MoeJob
from streams.policies.experts.rank_allocation import Ranks
from streams.policies.gang.gangs import Cause, Gangs, Why
from streams.policies.gang.generation import Gang
from streams.policies.gang.single_job import SingleJobGangs
from streams.policies.policy import ZoneContext
from tests.streams.gang.specification import Begin, Change, Decided, End
from tests.support import moe
from tests.support.elastic import GPUS, ElasticTerms, elastic_cell, workload
from tests.support.twins import ZONE

WORK_SAMPLES = 10
TIMEOUT_S = 100.0
SERVICE_ENDS_S = 20.0
"""Time at which services end; the history may end them at any."""
STATE_BYTES = 1_000
SERVERS = ("s0", "s1", "s2")
WORK = workload(WORK_SAMPLES)
CAUSES = (
    *("started", "resumed", "node_lost", "preempted", "run_failed", "given_up", "withdrawn", "work_done"),
    *("scaled_out", "scaled_in", "moved", "servers_reclaimed", "time_over"),
)
PROGRESSED = {"node_s": 0.0, "complete": False}
COMPLETE = {"node_s": 0.0, "complete": True}
_BY_CAUSE: Mapping[str, str] = MappingProxyType({cause: cause for cause in CAUSES})


class Assigned(Outcome):
    """A node is to begin processes."""

    TYPE: ClassVar = "test.gang.assigned.v1"

    job_id: str
    node: str
    generation: int
    resume_samples: int


class Changed(Outcome):
    """A gang has other processes."""

    TYPE: ClassVar = "test.gang.changed.v1"

    job_id: str
    generation: int
    reason: str
    width_before: int = 0


class Released(Outcome):
    """A node is to end processes."""

    TYPE: ClassVar = "test.gang.released.v1"

    job_id: str
    node: str
    generation: int
    reason: str


class CountedGang(Gang):
    """A gang of constant size."""

    @property
    def state_bytes(self) -> int:
        return STATE_BYTES


class LedGang(CountedGang):
    """A gang whose leader alone reports progress."""

    ALL_TRACK_PROGRESS = False


class ForgetfulGang(CountedGang):
    """A gang without checkpoints."""

    @property
    def keeps_progress(self) -> bool:
        return False


class PlainGangs(SingleJobGangs[CountedGang, str]):
    """Gangs of a policy that adds nothing: a process on each node, and a second one on some."""

    def begin(self, job: CountedGang, members: Sequence[str]) -> None:
        """Begin the first generation, or the next of a job that waits."""
        self._begin_generation(job, job.generation + 1, _processes(members))
        self._order(job, 0, Why("resumed" if job.generation > 1 else "started"))

    def resize(self, job: CountedGang, members: Collection[str], cause: str) -> None:
        """Begin the next generation of a job that runs."""
        stay = [node for node in job.members if node in members]
        left = [node for node in job.working if node not in members]
        replaced, width = job.generation, self._width(job)
        self.leave(job, {node: job.members[node] for node in left}, replaced)
        joined = (node for node in members if node not in stay)
        self._begin_generation(job, replaced + 1, _processes([*stay, *joined]))
        done, job.done = job.done, {}
        for node in done:
            if node not in job.members:
                self._release_node(job, node)
        self.note(job)
        self._order(job, width, Why(cause), left, replaced)

    def _order(
        self, job: CountedGang, width: int, why: Why[str], left: Sequence[str] = (), replaced: int = 0
    ) -> None:
        self._outcomes.add(self._changed(job, width, why))
        self._outcomes.extend(self._released(job, node, replaced, why) for node in left)
        for node in job.members:
            place = {"job_id": job.job_id, "node": node, "generation": job.generation}
            self._outcomes.add(Assigned(**place, resume_samples=job.job.samples_done))

    def _changed(self, job: CountedGang, width_before: int, why: Why[str]) -> Outcome:
        return Changed(
            job_id=job.job_id, generation=job.generation, reason=why.reason, width_before=width_before
        )

    def _released(self, job: CountedGang, node: str, generation: int, why: Why[str]) -> Outcome:
        reason = job.release_reason(why.reason)
        return Released(job_id=job.job_id, node=node, generation=generation, reason=reason)

    def _why(self, job: CountedGang, cause: Cause, facts: Mapping[str, Fact] = NO_FACTS) -> Why[str]:
        return Why(cause, facts)


def _processes(nodes: Sequence[str]) -> dict[str, int]:
    return {node: 1 + place % 2 for place, node in enumerate(nodes)}


class Policy(ABC):
    """The gangs of a policy, without the zone that decides about them."""

    CELL: ClassVar[CellConfigured] = elastic_cell(len(SERVERS))
    NODES: ClassVar[Sequence[str]] = SERVERS
    TERMS: ClassVar[type[Terms]] = ElasticTerms
    ASSIGNED: ClassVar[type[Outcome]] = Assigned
    CHANGED: ClassVar[type[Outcome]] = Changed
    RELEASED: ClassVar[type[Outcome]] = Released
    CHANGE_REASONS: ClassVar[Mapping[str, str]]
    """Reason of a change by its cause."""
    RELEASE_REASONS: ClassVar[Mapping[str, str]]
    """Reason of a release by its cause."""

    def __init__(self) -> None:
        self.outcomes = Outcomes()
        self.jobs: dict[str, Job] = {}
        """Jobs of the register."""
        self.live = LiveBytes(10**9)
        self.gangs: Any = self.opened()
        self.gangs.orders.advance(0.0)

    @abstractmethod
    def gangs_of(self, context: ZoneContext) -> Gangs[Any, Any]:
        """Return the gangs of a zone without jobs."""

    @abstractmethod
    def gang_of(self, rng: random.Random, job: Job) -> Gang:
        """Return the gang of a new job."""

    @abstractmethod
    def begin(self, rng: random.Random, job: Any) -> bool:
        """Begin the next generation of a waiting job, if there is room for it."""

    def work(self, rng: random.Random) -> Workload:
        """Return the work of a new job."""
        return WORK

    def resize(self, rng: random.Random, job: Any) -> str | None:
        """Change the nodes of a job in force; return the cause, if they change."""
        return None

    def expire(self, job: Any) -> bool:
        """End a job whose time is over; return whether it has such a time, and is not ending."""
        return False

    def quiet_s(self, job: Any) -> float:
        """Return the silence that is expected of a job that has started."""
        return 0.0

    def width_before(self, outcome: Any) -> int | None:
        """Return the number of processes before a change; None where the decision does not have it."""
        return None

    def waiting(self) -> list[str] | None:
        """Return the jobs that may begin; None if the policy keeps no list of them."""
        return None

    def check(self) -> None:
        """Check what the policy derives from its gangs."""
        assert list(self.gangs.broken_invariants()) == []

    def opened(self) -> Gangs[Any, Any]:
        """Return the gangs of the policy's zone, without jobs."""
        nodes, zone = NodePool(Layout(self.CELL)), self.CELL.zones[0]
        profiles = ZoneProfiles(ProfileStore(), ZONE)
        context = ZoneContext(
            self.CELL, zone, self.jobs, self.live, nodes.loans, nodes, self.outcomes, profiles
        )
        gangs = self.gangs_of(context)
        gangs.orders.timeout_s = TIMEOUT_S
        return gangs

    def submit(self, rng: random.Random, job_id: str) -> Gang:
        """Add a job."""
        user = rng.choice(["u", "v"])
        job = self.jobs[job_id] = Job(job_id, user, ZONE, self.work(rng), self.TERMS())
        gang = self.gang_of(rng, job)
        self.gangs.arrivals += 1
        self.gangs.add(gang)
        return gang

    def tick(self, time_s: float) -> None:
        """The clock of the cell is at a time."""
        self.gangs.time_s = time_s
        if self.gangs.orders.advance(time_s):
            self.gangs.give_up_silent()

    def restore(self) -> None:
        """Continue with gangs that are restored from the states of the present ones."""
        before, self.live = self.gangs, LiveBytes(10**9)
        self.gangs = self.opened()
        self.gangs.arrivals, self.gangs.time_s = before.arrivals, getattr(before, "time_s", None)
        self.gangs.orders.restore(before.orders.state())
        self.restore_room(before)
        for job in before.jobs.values():
            self.gangs.add(from_state(type(job), state_of(job), self.jobs))

    def restore_room(self, before: Any) -> None:  # noqa: B027
        """Restore what the policy keeps besides its jobs: nothing by default."""

    def decided(self, outcome: Any) -> tuple[str, Decided] | None:
        """Return a decision on a gang's processes, with its job."""
        if isinstance(outcome, self.ASSIGNED):
            return outcome.job_id, Begin(outcome.node, outcome.generation, outcome.resume_samples)
        if isinstance(outcome, self.CHANGED):
            return outcome.job_id, Change(outcome.generation, outcome.reason)
        if isinstance(outcome, self.RELEASED):
            return outcome.job_id, End(outcome.node, outcome.generation, outcome.reason)
        return None

    def worded(self, decided: Decided) -> Decided:
        """Return a specified decision with the policy's reason in place of the cause."""
        match decided:
            case Change():
                return decided._replace(cause=self.CHANGE_REASONS[decided.cause])
            case End():
                return decided._replace(cause=self.RELEASE_REASONS[decided.cause])
        return decided


class Plain(Policy):
    """A policy that adds nothing."""

    GANG: ClassVar[type[CountedGang]] = CountedGang
    CHANGE_REASONS: ClassVar = {**_BY_CAUSE, "given_up": "run_failed"}
    RELEASE_REASONS: ClassVar = {
        **dict.fromkeys(CAUSES, "preempted"),
        "node_lost": "node_lost",
        "run_failed": "node_lost",
        "given_up": "failed",
        "withdrawn": "withdrawn",
    }

    def gangs_of(self, context: ZoneContext) -> PlainGangs:
        return PlainGangs(context)

    def gang_of(self, rng: random.Random, job: Job) -> Gang:
        return self.GANG(job, self.gangs.arrivals)

    def begin(self, rng: random.Random, job: Any) -> bool:
        self.gangs.begin(job, rng.sample(self.NODES, rng.randint(1, len(self.NODES))))
        return True

    def width_before(self, outcome: Any) -> int | None:
        return outcome.width_before if isinstance(outcome, Changed) else None

    def resize(self, rng: random.Random, job: Any) -> str | None:
        members = rng.sample(self.NODES, rng.randint(1, len(self.NODES)))
        more = len(members) - len(job.members)
        cause = "scaled_out" if more > 0 else "scaled_in" if more < 0 else "moved"
        self.gangs.resize(job, members, cause)
        return cause


class Led(Plain):
    """A policy whose leaders alone report progress."""

    GANG = LedGang


class Forgetful(Plain):
    """A policy without checkpoints."""

    GANG = ForgetfulGang


class Elastic(Policy):
    """Workers of elastic jobs, on servers of four GPUs."""

    ASSIGNED = WorkersAssigned
    CHANGED = JobResized
    RELEASED = WorkersReleased
    CHANGE_REASONS: ClassVar = {
        **_BY_CAUSE,
        **dict.fromkeys(["given_up", "withdrawn", "work_done"], "stopped"),
    }
    RELEASE_REASONS: ClassVar = {
        **dict.fromkeys(["scaled_out", "scaled_in", "moved", "servers_reclaimed"], "scaled_in"),
        **dict.fromkeys(["node_lost", "run_failed"], "node_lost"),
        **dict.fromkeys(["given_up", "withdrawn", "work_done"], "withdrawn"),
        "preempted": "preempted",
    }

    def gangs_of(self, context: ZoneContext) -> Workforce:
        workforce = Workforce(context, Cluster())
        workforce.profiles = ElasticProfiles(context, ServerSizes(context))
        for server in SERVERS:
            workforce.cluster.add_server(server, "training", GPUS)
        return workforce

    def work(self, rng: random.Random) -> Workload:
        least = rng.choice([1, 1, 2])
        return workload(WORK_SAMPLES, (least, least + 3), keeps_checkpoints=rng.random() < 0.7)

    def gang_of(self, rng: random.Random, job: Job) -> Gang:
        return ElasticJob(job, self.gangs.arrivals, known=None, assumed_running_s=1.0)

    def begin(self, rng: random.Random, job: Any) -> bool:
        least, more = job.workload.min_workers, rng.randint(0, 3)
        if self._room < least + more:
            return False
        self._place(rng, job.job_id, "base", least)
        self._place(rng, job.job_id, "flexible", more)
        self.gangs.start(job, least + more, self._grant(job), NO_FACTS)
        return True

    def resize(self, rng: random.Random, job: Any) -> str | None:
        if rng.random() < 0.3:
            return self._leave_server(rng, job)
        flexible = job.workers - job.workload.min_workers
        fewer, more = rng.randint(0, flexible), rng.randint(0, 2)
        more = min(more, 3 - flexible + fewer, self._room)
        self.gangs.cluster.shrink(job.job_id, fewer) if fewer else None
        self._place(rng, job.job_id, "flexible", more)
        self.gangs.resize(job, job.workers - fewer, more, self._grant(job), NO_FACTS)
        if more == 0:
            return "scaled_in" if fewer else None
        return "scaled_out" if more > fewer else "scaled_in" if more < fewer else "moved"

    def _leave_server(self, rng: random.Random, job: Any) -> str | None:
        by_s, servers = rng.choice([None, 1e6]), [rng.choice([*job.members])]
        if not hosted_job(self.gangs.cluster, job.job_id).is_preempted_without(servers):
            self.gangs.vacate(job, servers)
            self.gangs.follow_room(job, Why("servers_reclaimed", NO_FACTS, by_s))
            return "servers_reclaimed"
        if by_s is None:
            return None  # it stays until it is over
        self.gangs.return_to_queue(job, Why("preempted", NO_FACTS, by_s))
        return "preempted"

    def width_before(self, outcome: Any) -> int | None:
        return outcome.workers_before if isinstance(outcome, JobResized) else None

    def waiting(self) -> list[str]:
        return [job.job_id for job in self.gangs.waiting]

    def quiet_s(self, job: Any) -> float:
        left_s: float = self.gangs.work_left_s(job) / self.gangs.speed(job)
        return left_s

    def check(self) -> None:
        super().check()
        assert list(broken_invariants(self.gangs)) == []

    def restore_room(self, before: Any) -> None:
        self.gangs.cluster.restore(before.cluster.state())

    @property
    def _room(self) -> int:
        return int(self.gangs.cluster.free_gpus("training"))

    def _place(self, rng: random.Random, job_id: str, kind: Kind, workers: int) -> None:
        """Place workers of a job on any servers with room."""
        for _ in range(workers):
            cluster = self.gangs.cluster
            server = rng.choice([server for server in SERVERS if cluster.server(server).free])
            cluster.add_workers(job_id, kind, server, 1, 1)

    @staticmethod
    def _grant(job: ElasticJob) -> WorkerGrant:
        return WorkerGrant(job.job_id, 1, "training", "training")


class Experts(Policy):
    """Ranks of jobs that train experts: rigid gangs, on nodes of two GPUs."""

    CELL = moe.moe_cell(3)
    NODES = ("n0", "n1", "n2")
    TERMS = ExpertsTerms
    ASSIGNED = RanksAssigned
    CHANGED = RanksChanged
    RELEASED = RanksReleased
    CHANGE_REASONS: ClassVar = {**_BY_CAUSE, "given_up": "run_failed", "time_over": "ended"}
    RELEASE_REASONS: ClassVar = {**Plain.RELEASE_REASONS, "time_over": "ended"}

    def gangs_of(self, context: ZoneContext) -> Ranks:
        ranks = Ranks(context)
        ranks.gpus.configure(context.zone)
        ranks.report_interval_s = 1.0
        return ranks

    def work(self, rng: random.Random) -> Workload:
        ranks = rng.randint(1, 4)
        if rng.random() < 0.7:
            return moe.training(ranks, WORK_SAMPLES)
        service: Workload = moe.serving(ranks, WORK_SAMPLES, until_s=SERVICE_ENDS_S)
        return service

    def gang_of(self, rng: random.Random, job: Job) -> Gang:
        return MoeJob(job, self.gangs.arrivals, since_s=self.gangs.time_s)

    def begin(self, rng: random.Random, job: Any) -> bool:
        has_room = self.gangs.gpus.idle() >= job.ranks
        assert self.gangs.start(job) == has_room
        return has_room

    def expire(self, job: Any) -> bool:
        if job.until_s is None or job.is_ending:
            return False
        job.is_time_over = True
        self.gangs.end(job, Why("ended"))
        return True

    def quiet_s(self, job: Any) -> float:
        return 0.0 if job.until_s is None else max(SERVICE_ENDS_S - self.gangs.time_s, 0.0)

    def waiting(self) -> list[str]:
        return [job.job_id for job in self.gangs.waiting]

    def check(self) -> None:
        super().check()
        jobs = self.gangs.jobs.values()
        sizes = [job.ranks for job in jobs]
        assert self.gangs.sizes == {size: sizes.count(size) for size in sizes}
        assert {*self.gangs.turns.numbers} == {job.job.user for job in jobs}
        for node in self.NODES:
            holders = {job.job_id for job in jobs if node in job.members or node in job.leaving}
            assert {*self.gangs.gpus.holders(node)} == holders

    def restore_room(self, before: Any) -> None:
        self.gangs.turns.restore(before.turns.state())
