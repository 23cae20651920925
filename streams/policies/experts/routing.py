"""Reports of leaders on routed tokens, and the placements that follow from them."""

from collections.abc import Iterator, Sequence

from schemas.base import Outcome
from schemas.decisions import EventIgnored
from schemas.experts.outcomes import LayerPlaced, PlacementReason
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted, RoutingReport
from schemas.experts.settings import ExpertsPolicy
from schemas.experts.workload import MoeServeWorkload
from streams.policies.experts.job import MoeJob
from streams.policies.experts.outcomes import decided, placed
from streams.policies.experts.popularity import Popularity, rule_of, state_bytes, unusable
from streams.policies.experts.ranks import Ranks


class Routing:
    """Routing of the services of one zone."""

    def __init__(self, policy: ExpertsPolicy, ranks: Ranks) -> None:
        self._ranks = ranks
        self.rule = rule_of(policy)

    def configure(self, policy: ExpertsPolicy) -> None:
        """The zone has these settings from now on."""
        self.rule = rule_of(policy)
        for job in self._ranks.jobs.values():
            if job.popularity is not None:
                job.popularity.follow(self.rule)

    def report(self, job: MoeJob, report: RoutingReport) -> Iterator[Outcome]:
        """The leader of a job tells of routed tokens. Of a job that trains they say only how far it is."""
        if report.node != job.leader or report.node not in job.working:
            detail = f"node {report.node} does not speak for run {report.run_id} of job {job.job_id}"
            yield EventIgnored(reason="unusable_report", detail=detail)
            return
        fault = self._fault(job, report)
        if fault is not None:
            yield EventIgnored(reason="unusable_report", detail=f"job {job.job_id}: {fault}")
            return
        job.progress(report.samples_done)
        job.hear(self._ranks.orders.elapsed_s)
        if isinstance(job.workload, MoeServeWorkload):
            yield from self._place(job, job.workload, report)
        self._ranks.has_news = True

    def _fault(self, job: MoeJob, report: RoutingReport) -> str | None:
        """Why a report cannot be used; None if it can."""
        if not isinstance(job.workload, MoeServeWorkload):
            return None if isinstance(report, ExpertsRouted) else "a job that trains has no profile stage"
        known = job.popularity
        if isinstance(report, ExpertsProfiled) and job.is_profiled:
            return f"generation {job.generation} has told of its profile stage before"
        revision = 0 if known is None else known.revision
        if isinstance(report, ExpertsRouted) and report.revision > revision:
            return f"it was served with placement {report.revision}, and the newest is {revision}"
        fault = unusable(report, known, job.cluster)
        if fault is None and known is None:
            layers, experts = len(report.layers), len(report.layers[0].tokens)
            fault = self._ranks.refuse_growth(state_bytes(layers, experts, job.cluster))
        return fault

    def _place(self, job: MoeJob, workload: MoeServeWorkload, report: RoutingReport) -> Iterator[Outcome]:
        is_profile = isinstance(report, ExpertsProfiled)
        job.is_profiled |= is_profile
        known = job.popularity
        is_first = known is None
        if is_first and not is_profile and workload.profile_batches:
            return  # What is routed while the profile stage lasts is in its report.
        if known is None:
            known = Popularity.unknown(
                len(report.layers), len(report.layers[0].tokens), self.rule, job.cluster
            )
            job.popularity = known
            self._ranks.recount(job)
        # Without a profile stage the first report stands for it. A service that begins anew has a placement,
        # and its profile counts as a report like others.
        nodes = len(job.working)
        if is_first:
            initial = known.begin(report.layers, self._ranks.time_s, nodes)
            yield from self._told(job, known, "initial", initial)
        else:
            shifted = known.report(report.layers, self._ranks.time_s, nodes)
            yield from self._told(job, known, "popularity_shifted", shifted)

    def _told(
        self, job: MoeJob, known: Popularity, reason: PlacementReason, layers: Sequence[LayerPlaced]
    ) -> Iterator[Outcome]:
        if layers:
            decision = decided(self._ranks.zone, job, known.revision, reason, layers)
            yield decision
            yield from placed(self._ranks.zone, job, decision)
