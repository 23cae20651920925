"""Knowledge of a zone about its jobs: profiles, forecasts, and results of earlier jobs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from schemas.facts import Facts
from schemas.merging.estimates import (
    MAX_FINISHED,
    MAX_KINDS,
    MAX_OUTCOMES,
    EstimateProblem,
    EstimateSolution,
    Evidence,
    FinishedKind,
    MergeMode,
    PairScore,
    PastMerge,
)
from schemas.merging.reports import TaskProfiled
from schemas.merging.settings import (
    BARRED_KEPT,
    KINDS_KEPT,
    TRANSFERS_KEPT,
    MergingPolicy,
    TransferabilityName,
)
from schemas.merging.workload import TuningWorkload
from solvers.merging.transferability import Task2Feat, Task2Vec, Transferability
from streams.cell.states import Stateful
from streams.policies.merging.kind_of_jobs import KindOfJobs, fault_of, kind_key
from streams.policies.merging.tuning_job import TuningJob

TRANSFERABILITY: Mapping[TransferabilityName, Callable[[], Transferability]] = {
    "task2vec": Task2Vec,
    "task2feat": Task2Feat,
}
_LEAST_PART_LEFT = 0.05
"""Least part of a job's expected iterations that counts as left, even beyond its estimate."""

CHEAP = 0.25
"""Most samples of the watched epochs of a job in a trial, as a part of the mean samples of finished jobs."""


class TransferForecast(NamedTuple):
    """Forecast of the effect of merging two kinds."""

    score: float
    receiver_gain: float
    receiver_ratio: float
    donor_gain: float
    donor_ratio: float
    evidence: Evidence = "shown"
    receiver_bound: float | None = None
    donor_bound: float | None = None

    @property
    def planned_ratios(self) -> tuple[float, float]:
        """Ratios for plans, of the receiver and of the donor: the upper confidence bounds of merges that past
        ones have shown to pay; the expected ratios of a trial."""
        if self.evidence == "trial":
            return self.receiver_ratio, self.donor_ratio
        return (
            self.receiver_ratio if self.receiver_bound is None else self.receiver_bound,
            self.donor_ratio if self.donor_bound is None else self.donor_bound,
        )

    @property
    def reversed(self) -> "TransferForecast":
        """Forecast of the same spatial merge with the other job as the donor."""
        return self._replace(
            receiver_gain=self.donor_gain,
            receiver_ratio=self.donor_ratio,
            donor_gain=self.receiver_gain,
            donor_ratio=self.receiver_ratio,
            receiver_bound=self.donor_bound,
            donor_bound=self.receiver_bound,
        )


Pair = tuple[MergeMode, str, str]
"""A mode and the keys of two kinds: donor and receiver, or in the order of their keys."""


@dataclass(init=False, eq=False)
class Knowledge(Stateful):
    """Knowledge of one zone."""

    kinds: dict[str, KindOfJobs]
    """Kinds by key, in the order of their first jobs."""
    transfers: dict[Pair, TransferForecast]
    barred: list[Pair]
    """Merges whose runs have failed, the last ones at the end; spatial ones in both orders."""
    outcomes: list[PastMerge]
    """Latest results of merges, oldest first."""
    embedding_length: int | None
    """Length of the embeddings that similarity is computed from."""
    has_changed: bool
    """Whether anything since the last request could change its answer."""
    _asked: tuple[str, ...]
    """Kinds of the last request, in its order."""
    _uses: int
    _trained_samples: int
    """Samples trained by all jobs that are done."""
    _finished: int
    """Number of jobs that are done."""
    _lost_samples: int
    """Samples trained in vain, in merges that were undone."""

    def __init__(self, policy: MergingPolicy) -> None:
        self._policy = policy
        self._metric = TRANSFERABILITY[policy.transferability]()
        self._scores: dict[tuple[str, str], float] = {}
        """S(A, B) by the keys of the kinds; a cache, computed from their embeddings."""
        self.kinds, self.transfers, self.outcomes = {}, {}, list(policy.outcomes)
        self.barred = []
        self.embedding_length, self.has_changed, self._asked = None, False, ()
        self._uses = self._trained_samples = self._finished = self._lost_samples = 0

    def configure(self, policy: MergingPolicy) -> None:
        """Set the settings. If similarity is computed from another field than before, new jobs are profiled
        again."""
        if self._policy.transferability != policy.transferability:
            for kind in self.kinds.values():
                kind.is_profiled = False
                kind.forget_profile()
            self.embedding_length, self.transfers, self._scores, self._asked = None, {}, {}, ()
        if self._policy.watched_epochs != policy.watched_epochs:
            for kind in self.kinds.values():
                kind.watched = 0
        self._policy = policy
        self._metric = TRANSFERABILITY[policy.transferability]()
        self.has_changed = True

    def admit(self, workload: TuningWorkload) -> KindOfJobs:
        """Count a new job, and return its kind."""
        key = kind_key(workload)
        kind = self.kinds.setdefault(key, KindOfJobs.of(workload))
        kind.jobs += 1
        kind.most_iterations = max(kind.most_iterations, workload.target.most_iterations)
        self._use(kind)
        self.has_changed = self.has_changed or (kind.is_usable and key not in self._asked)
        return kind

    def leave(self, key: str) -> None:
        """Count a job of a kind that is over."""
        kind = self.kinds[key]
        kind.jobs -= 1
        self._use(kind)
        over = [kind for kind in self.kinds.values() if not kind.jobs]
        if len(over) > KINDS_KEPT:
            oldest = min(over, key=lambda kind: kind.used)
            del self.kinds[oldest.key]
            self._forget_pairs_of(oldest.key)

    def profiled(self, key: str, report: TaskProfiled) -> Facts | None:
        """Keep a profile, and return its fault; None if it is sound."""
        kind, self.has_changed = self.kinds[key], True
        if self._policy.transferability == "task2feat":
            fault, embedding = fault_of(report, "features", self.embedding_length), report.features
        else:
            fault, embedding = fault_of(report, "embedding", self.embedding_length), report.embedding
        if fault is not None:
            kind.note_profile(report)
            return fault
        self.embedding_length = len(embedding)
        kind.keep_profile(report, embedding)
        self._forget_scores(key)
        self._evict_profile(kind)
        return None

    def expected_iterations(self, job: TuningJob) -> int:
        """Return all iterations that a job needs, in its merge or alone. A job whose merged run has failed
        counts as alone, whatever the forecast of the merge."""
        most = job.workload.target.most_iterations
        if job.merge is not None and not job.merge.is_donor and not job.never_merges:
            return min(max(job.merge.iterations, 1), most)
        return self.iterations_alone(job)

    def iterations_alone(self, job: TuningJob) -> int:
        """Return all iterations that a job needs without a merge."""
        most = job.workload.target.most_iterations
        kind = self.kinds[job.kind]
        # The published estimator estimates a job once, by its profile.
        is_profiled = self._policy.estimator == "published" and kind.iterations is not None
        expected = kind.iterations if is_profiled else kind.expected_iterations
        return most if expected is None else min(max(round(expected), 1), most)

    def iterations_left(self, job: TuningJob) -> float:
        """Return the iterations that a job still needs. Beyond its expected iterations, a job counts as
        needing its excess once more: otherwise it would always be almost done, and precede all others."""
        expected, done = self.expected_iterations(job), job.iterations
        left = max(expected - done, done - expected, _LEAST_PART_LEFT * expected)
        return max(min(left, job.workload.target.most_iterations - done), 1.0)

    def estimate(self, jobs: Iterable[TuningJob], donors: Collection[str] = ()) -> EstimateProblem | None:
        """Return the request for estimates; None if there is nothing to forecast.

        Args:
            jobs: the live jobs.
            donors: kinds with adapters that jobs may start from.
        """
        self.has_changed = False
        counts: dict[str, int] = {}
        for job in jobs:
            if job.workload.sharing:
                counts[job.kind] = counts.get(job.kind, 0) + 1
        usable = [key for key, kind in self.kinds.items() if kind.is_usable and (kind.jobs or key in donors)]
        ranked = sorted(usable, key=lambda key: (not self.kinds[key].jobs, -counts.get(key, 0)))[:MAX_KINDS]
        if not any(self.kinds[key].jobs for key in ranked):
            self.has_changed = bool(donors)  # the next job may start from one of them
            return None
        self._asked = tuple(ranked)
        pairs = [(a, b) for a in range(len(ranked)) for b in range(len(ranked))]
        return EstimateProblem(
            estimator=self._policy.estimator,
            modes=self._policy.modes,
            kinds=tuple(self.kinds[key].facts() for key in ranked),
            finished=tuple(
                FinishedKind(task=kind.task, share=min(kind.finished_iterations / kind.most_iterations, 1.0))
                for kind in sorted(self.kinds.values(), key=lambda kind: kind.used)
                if kind.finished
            )[-MAX_FINISHED:],
            scores=tuple(
                PairScore(donor=a, receiver=b, score=self._score(ranked[a], ranked[b])) for a, b in pairs
            ),
            outcomes=tuple(self.outcomes),
            watched_epochs=self._policy.watched_epochs,
        )

    def keep_estimates(self, solution: EstimateSolution) -> dict[str, Facts]:
        """Keep a solver's answer to the last request.

        Returns:
            the fault of the profile by kind, empty if it is sound, for kinds with a fault or a first
            estimate.
        """
        news: dict[str, Facts] = {}
        asked = set(self._asked)
        self._forget(lambda donor, receiver: donor in asked and receiver in asked)
        # The forecasts of other pairs are stale.
        self.transfers = {
            pair: forecast._replace(evidence="none") for pair, forecast in self.transfers.items()
        }
        for key, estimate in zip(self._asked, solution.kinds, strict=False):
            kind = self.kinds.get(key)
            if kind is None:
                continue
            if kind.iterations is None or estimate.fault is not None:
                news[key] = {} if estimate.fault is None else {"case": estimate.fault}
            kind.iterations = estimate.iterations
            if estimate.fault is not None:
                kind.is_usable = False
        for one in solution.transfers:
            if max(one.donor, one.receiver) >= len(self._asked):
                continue
            donor, receiver = self._asked[one.donor], self._asked[one.receiver]
            if self._may_merge(one.mode, donor, receiver):
                score = self._score(donor, receiver)
                if one.mode == "spatial":
                    score = (score + self._score(receiver, donor)) / 2
                self.transfers[one.mode, donor, receiver] = TransferForecast(
                    score,
                    one.receiver_gain,
                    one.receiver_ratio,
                    one.donor_gain,
                    one.donor_ratio,
                    one.evidence,
                    one.receiver_bound,
                    one.donor_bound,
                )
        for pair in list(self.transfers)[:-TRANSFERS_KEPT]:
            del self.transfers[pair]
        return news

    def transfer(self, mode: MergeMode, donor: str, receiver: str) -> TransferForecast | None:
        """Return the forecast for merging jobs of two kinds; None if unknown. A spatial merge has the
        donor that is named here."""
        known = self.transfers.get((mode, donor, receiver))
        if known is None and mode == "spatial":
            known = self.transfers.get((mode, receiver, donor))
            if known is not None:
                return known.reversed
        return known

    def library_start(self, donor: str, job: TuningJob) -> TransferForecast | None:
        """Return the forecast for a job that starts from the adapter of a finished job of a kind; None if it
        is not to. With `merges: shown`, past merges must show that it pays, and if it is undone the job must
        not end more than twice as late as alone."""
        known, kind = self.transfer("temporal", donor, job.kind), self.kinds[job.kind]
        if known is None or "temporal" not in self._policy.modes or donor not in self.kinds:
            return None
        if self._policy.merges == "expected":
            return known if known.receiver_ratio < 1 else None
        watched = self._policy.watched_epochs * kind.iterations_per_epoch
        is_shown = known.evidence == "shown" and known.planned_ratios[0] < 1
        return known if is_shown and watched <= self.iterations_alone(job) else None

    def bar(self, mode: MergeMode, donor: str, receiver: str) -> None:
        """Bar merges of two kinds in a mode."""
        orders = {(donor, receiver)} if mode == "temporal" else {(donor, receiver), (receiver, donor)}
        for one, other in sorted(orders):
            self.transfers.pop((mode, one, other), None)
            self.barred.append((mode, one, other))
        del self.barred[:-BARRED_KEPT]

    def add_outcome(self, outcome: PastMerge) -> None:
        """Keep the result of a merge for one of its jobs."""
        self.outcomes.append(outcome)
        del self.outcomes[:-MAX_OUTCOMES]
        self.has_changed = True

    def note_finished(self, job: TuningJob) -> None:
        """Count a job that ran alone until it was done."""
        self.kinds[job.kind].note_finished(job.iterations, job.best_accuracy)
        self.has_changed = True

    def note_trained(self, samples: int) -> None:
        """Count a job that is done and its trained samples, summed over its epochs."""
        self._trained_samples += samples
        self._finished += 1

    def note_lost(self, samples: int) -> None:
        """Count the samples of a job that were trained in vain, because its merge is undone."""
        self._lost_samples += samples

    def is_cheap(self, samples: int) -> bool:
        """Return whether a trial that costs some samples is cheap compared with a mean job."""
        return samples * self._finished <= CHEAP * self._trained_samples

    def may_try(self, samples: int) -> bool:
        """Return whether the budget of trials has room for some samples, trials under way included."""
        budget = self._policy.trial_budget * self._trained_samples
        return budget > 0 and self._lost_samples + samples <= budget

    def describe(self) -> dict[str, Any]:
        """Describe kinds of jobs and past merges for an operator, in values that JSON has."""
        return {
            "kinds": {key: kind.describe() for key, kind in self.kinds.items()},
            "transfers": len(self.transfers),
            "outcomes": [outcome.model_dump(mode="json") for outcome in self.outcomes],
            "jobs_finished": self._finished,
            "trained_samples": self._trained_samples,
            "lost_samples": self._lost_samples,
        }

    def _score(self, donor: str, receiver: str) -> float:
        if (donor, receiver) not in self._scores:
            embeddings: Sequence[tuple[float, ...]] = (
                self.kinds[donor].embedding,
                self.kinds[receiver].embedding,
            )
            self._scores[donor, receiver] = self._metric.score(*embeddings)
        return self._scores[donor, receiver]

    def _may_merge(self, mode: MergeMode, donor: str, receiver: str) -> bool:
        """Return whether two kinds have adapters of one form and sound profiles. A kind may have been dropped
        since the request."""
        kinds = [self.kinds[key] for key in (donor, receiver) if key in self.kinds]
        return (
            len(kinds) == 2
            and (mode, donor, receiver) not in self.barred
            and all(kind.is_usable for kind in kinds)
            and kinds[0].forms[mode] == kinds[1].forms[mode]
        )

    def _evict_profile(self, newest: KindOfJobs) -> None:
        """Drop a profile beyond `KINDS_KEPT`: of the kinds with the fewest live jobs, the least recently
        used."""
        held = [kind for kind in self.kinds.values() if kind.losses]
        if len(held) > KINDS_KEPT:
            others = [kind for kind in held if kind is not newest]
            least = min(others, key=lambda kind: (kind.jobs, kind.used))
            least.forget_profile()
            self._forget_pairs_of(least.key)
            if not least.jobs:
                del self.kinds[least.key]

    def _use(self, kind: KindOfJobs) -> None:
        self._uses += 1
        kind.used = self._uses

    def _forget(self, is_old: Callable[[str, str], bool]) -> None:
        """Drop the forecasts of some pairs of kinds."""
        self.transfers = {
            pair: forecast for pair, forecast in self.transfers.items() if not is_old(pair[1], pair[2])
        }

    def _forget_pairs_of(self, key: str) -> None:
        """Drop everything that is computed from a kind's profile."""
        self._forget(lambda donor, receiver: key in (donor, receiver))
        self._forget_scores(key)

    def _forget_scores(self, key: str) -> None:
        self._scores = {pair: score for pair, score in self._scores.items() if key not in pair}
