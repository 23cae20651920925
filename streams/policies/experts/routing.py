"""Reports of leaders on routed tokens, and the placements by them."""

from collections.abc import Sequence

from schemas.decisions import EventIgnored
from schemas.experts.outcomes import LayerPlaced, PlacementReason
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted, RoutingReport
from schemas.experts.settings import ExpertsPolicy
from schemas.experts.workload import MoeServeWorkload
from schemas.facts import Facts
from streams.cell.outcomes import OutcomeSink
from streams.policies.experts.moe_job import MoeJob
from streams.policies.experts.outcomes import decided, placed
from streams.policies.experts.popularity import Popularity, rule_of, state_bytes, unusable
from streams.policies.experts.rank_allocation import Ranks


class ExpertRouting:
    """Routed tokens and placements of the services of one zone."""

    def __init__(self, policy: ExpertsPolicy, ranks: Ranks, outcomes: OutcomeSink) -> None:
        self._ranks = ranks
        self._outcomes = outcomes
        self.rule = rule_of(policy)

    def configure(self, policy: ExpertsPolicy) -> None:
        """Set the settings."""
        self.rule = rule_of(policy)
        for job in self._ranks.jobs.values():
            if job.popularity is not None:
                job.popularity.follow(self.rule)

    def report(self, job: MoeJob, report: RoutingReport) -> None:
        """Apply a report of a leader on routed tokens. For a job that trains, only its progress is used."""
        if report.node != job.leader or report.node not in job.working:
            facts: Facts = {
                "case": "not_the_leader",
                "job_id": job.job_id,
                "run_id": report.run_id,
                "node": report.node,
            }
            self._outcomes.add(EventIgnored(reason="unusable_report", facts=facts))
            return
        fault = self._fault(job, report)
        if fault is not None:
            self._outcomes.add(EventIgnored(reason="unusable_report", facts={"job_id": job.job_id, **fault}))
            return
        job.progress(report.samples_done)
        job.mark_seen(self._ranks.orders.elapsed_s)
        if isinstance(job.workload, MoeServeWorkload):
            self._place(job, job.workload, report)

    def _fault(self, job: MoeJob, report: RoutingReport) -> Facts | None:
        """Return why a report is unusable; None if it is usable."""
        if not isinstance(job.workload, MoeServeWorkload):
            return None if isinstance(report, ExpertsRouted) else {"case": "job_trains"}
        known = job.popularity
        if isinstance(report, ExpertsProfiled) and job.is_profiled:
            return {"case": "profiled_before", "generation": job.generation}
        revision = 0 if known is None else known.revision
        if isinstance(report, ExpertsRouted) and report.revision > revision:
            return {"case": "unknown_revision", "revision": report.revision, "newest_revision": revision}
        fault = unusable(report, known, job.cluster)
        if fault is None and known is None:
            layers, experts = len(report.layers), len(report.layers[0].tokens)
            fault = self._ranks.room.refuse_growth(state_bytes(layers, experts, job.cluster))
        return fault

    def _place(self, job: MoeJob, workload: MoeServeWorkload, report: RoutingReport) -> None:
        is_profile = isinstance(report, ExpertsProfiled)
        job.is_profiled |= is_profile
        known = job.popularity
        is_first = known is None
        if is_first and not is_profile and workload.profile_batches:
            return  # the report of the profile stage includes these tokens
        if known is None:
            known = Popularity.unknown(
                len(report.layers), len(report.layers[0].tokens), self.rule, job.cluster
            )
            job.popularity = known
            self._ranks.note(job)
        # Without a profile stage, the first report replaces it. A resumed service has a placement, and its
        # profile counts as any other report.
        nodes = len(job.working)
        if is_first:
            initial = known.begin(report.layers, self._ranks.time_s, nodes)
            self._send(job, known, "initial", initial)
        else:
            shifted = known.report(report.layers, self._ranks.time_s, nodes)
            self._send(job, known, "popularity_shifted", shifted)

    def _send(
        self, job: MoeJob, known: Popularity, reason: PlacementReason, layers: Sequence[LayerPlaced]
    ) -> None:
        if layers:
            decision = decided(self._ranks.zone, job, known.revision, reason, layers)
            self._outcomes.add(decision)
            self._outcomes.extend(placed(self._ranks.zone, job, decision))
