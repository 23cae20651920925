"""YmirEstimator: estimates of jobs and of their merges for the task merger (Ymir, section 4, Figure 7).

Its parts, and their alternatives:

- Transferability: the score S(A, B). A cell computes it, by `Task2Vec` or `Task2Feat` (a zone's setting
  `transferability`), since it is plain arithmetic on measurements of profile runs. LEEP needs a run of the
  model of A on the data of B, and so serves for comparison only (`transferability`).
- Gain: `gains`, a `GainModel`. - Loss curve: `fit`. - Iterations: `accuracy_target` alone, `targets` merged.
A flat loss (Eq. 2, `iterations`) ends no job here, and
  serves for comparison only.
- Time: `lookup_table`, which a cell keeps, as it is plain arithmetic too.

It fits curves and regressions, so it runs in a solver process. It is a pure function of its arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import fsum

from schemas.merging.estimates import (
    MAX_GAIN,
    MAX_RATIO,
    EstimateProblem,
    EstimateSolution,
    Evidence,
    KindEstimate,
    KindFacts,
    MergeMode,
    PastMerge,
    TransferEstimate,
)
from solvers.merging.accuracy_target import Evaluation, TargetedJob, epochs_to_target
from solvers.merging.evidence import PastMerges, Saving
from solvers.merging.gain import GainModel, GainOutcome, PairEffects
from solvers.merging.loss_curve import CurveFit, UnusableTrace, fit_loss_curve
from solvers.merging.merged_target import (
    WATCHED_EPOCHS,
    MergeQuestion,
    MergeResult,
    TargetForecast,
    forecast_targets,
)
from solvers.merging.pairs import Candidate

Pair = tuple[MergeMode, int, int]
"""Mode, and the indices of donor and receiver among the kinds."""
TargetModel = Callable[[Sequence[MergeResult], Sequence[MergeQuestion]], list[TargetForecast]]
Prior = Callable[[float], float]
"""Function of a score to the part of its iterations that a receiver needs."""

_LEAST_RATIO = 0.02
_TO_FIND_OUT = 8
"""Number of assumed prior results with neither saving nor loss."""
_PRIOR_OUTCOMES = 4.0
"""Weight of the evidence of embeddings, in outcomes."""
_RATIO_OF_EQUALS = 0.3
_RATIO_OF_STRANGERS = 1.3
_REMEMBERED_FIT: CurveFit = lru_cache(256)(fit_loss_curve)
"""Fit with a cache: a zone requests the same kinds repeatedly, and their profiles do not change."""
_MOST_SCORE = 100.0
_GAINS = (-0.999, 100.0)
_LEAST_TARGET = 1e-3
_EPOCHS = (1e-6, 1e9)
"""Range of epochs. A value outside is clipped, so that no extreme outcome, by chance or on purpose, prevents
all estimates of a zone."""
_MOST_NEEDED = 3.0
"""Largest cost of a failed merge, as a part of the receiver's iterations: that of a job that needs one epoch
alone. With a larger one, a single merge of a very short job would end all merging."""
_SETTING = "own"
"""Setting of the job itself: any two kinds of a task differ in their settings."""


def ratio_by_similarity(score: float) -> float:
    """Return the part of its iterations that a job is assumed to need without evidence from merges: after a
    task equal to its own (a score of 0), up to one that has nothing in common with it (-1)."""
    distance = min(max(-score, 0.0), 1.0)
    return _RATIO_OF_EQUALS + distance * (_RATIO_OF_STRANGERS - _RATIO_OF_EQUALS)


@dataclass(frozen=True)
class YmirEstimator:
    """Estimator with replaceable parts."""

    gains: GainModel = field(default_factory=PairEffects)
    fit: CurveFit = _REMEMBERED_FIT
    targets: TargetModel = forecast_targets
    prior: Prior = ratio_by_similarity

    def answer(self, problem: EstimateProblem) -> EstimateSolution:
        """Return all estimates for a zone. Pairs of kinds without a sound loss curve are left out."""
        kinds = tuple(self._alone(facts, problem) for facts in problem.kinds)
        sound = [index for index, kind in enumerate(kinds) if kind.fault is None]
        return EstimateSolution(kinds=kinds, transfers=tuple(self._transfers(problem, kinds, sound)))

    def _alone(self, facts: KindFacts, problem: EstimateProblem) -> KindEstimate:
        """Return the duration of a job of a kind.

        Without an accuracy target, it uses all allowed iterations, since nothing else ends it. Otherwise the
        estimate follows earlier jobs of the kind; or is an epoch, if the profile run met the target in it; or
        uses the share of their allowed iterations that other jobs needed. While no job has ended, it is all
        allowed iterations, so that an unknown job is not forecast to end early.
        """
        curve = self.fit(facts.losses)
        fault = curve.fault if isinstance(curve, UnusableTrace) else None
        if facts.target_accuracy is None:
            iterations = facts.most_iterations
        elif facts.finished_iterations is not None:
            iterations = round(facts.finished_iterations)
        else:
            most = float(facts.most_iterations)
            asked = TargetedJob(facts.task, _SETTING, facts.target_accuracy, most, _seen(facts))
            # For other jobs, only the share of the way at which they met their targets is kept.
            others = [
                TargetedJob(other.task, "other", 1.0, 1.0, (Evaluation(other.share, 1.0),))
                for other in problem.finished
            ]
            iterations = round(epochs_to_target(asked, others).epochs)
        return KindEstimate(
            iterations=min(max(iterations, 1), facts.most_iterations), fault=fault, task=facts.task
        )

    def _transfers(
        self, problem: EstimateProblem, kinds: Sequence[KindEstimate], sound: Sequence[int]
    ) -> list[TransferEstimate]:
        """Return the estimates of every pair in every requested mode."""
        scores = {(pair.donor, pair.receiver): _clipped(pair.score) for pair in problem.scores}
        pairs: list[Pair] = []
        for mode in problem.modes:
            pairs += [(mode, a, b) for a in sound for b in sound if mode == "temporal" or a <= b]
        asked = pairs + [(mode, b, a) for mode, a, b in pairs if mode == "spatial"]
        candidates = {pair: _candidate(problem, pair, scores) for pair in asked}
        results = _results(problem)
        gains, ratios = self._gains(problem, candidates), self._ratios(problem, results, kinds, candidates)
        past = PastMerges(results, problem.watched_epochs)
        savings = dict(zip(candidates, past.savings(list(candidates.values())), strict=True))
        told = []
        for mode, a, b in pairs:
            learners = [(mode, a, b), (mode, b, a)] if mode == "spatial" else [(mode, a, b)]
            is_known = all(problem.kinds[pair[2]].finished_iterations is not None for pair in learners)
            evidence: Evidence = "none"
            if is_known:
                seen = {candidates[pair]: savings[pair] for pair in learners}
                evidence = past.evidence(seen, [ratios[pair] for pair in learners])
            receiver, donor = learners[0], learners[-1]
            told.append(
                TransferEstimate(
                    mode=mode,
                    donor=a,
                    receiver=b,
                    receiver_gain=gains[receiver],
                    receiver_ratio=ratios[receiver],
                    donor_gain=gains[donor] if mode == "spatial" else 0.0,
                    donor_ratio=ratios[donor] if mode == "spatial" else 1.0,
                    evidence=evidence,
                    receiver_bound=_bound(savings[receiver]),
                    donor_bound=_bound(savings[donor]) if mode == "spatial" else None,
                )
            )
        return told

    def _gains(self, problem: EstimateProblem, candidates: Mapping[Pair, Candidate]) -> dict[Pair, float]:
        gained = [
            GainOutcome(_merge_of(past), _within(past.gain, _GAINS))
            for past in problem.outcomes
            if past.gain is not None
        ]
        forecasts = self.gains.forecast(gained, list(candidates.values()))
        return {
            pair: min(max(gain.gain, -MAX_GAIN), MAX_GAIN)
            for pair, gain in zip(candidates, forecasts, strict=True)
        }

    def _ratios(
        self,
        problem: EstimateProblem,
        results: Sequence[MergeResult],
        kinds: Sequence[KindEstimate],
        candidates: Mapping[Pair, Candidate],
    ) -> dict[Pair, float]:
        """Return the expected part of its iterations that each receiver needs, with merges that fail."""
        questions = [
            MergeQuestion(
                candidate,
                _within(kinds[receiver].iterations / problem.kinds[receiver].iterations_per_epoch, _EPOCHS),
            )
            for (_, _, receiver), candidate in candidates.items()
        ]
        losses = {
            mode: _loss_shown([one for one in results if one.merge.mode == mode]) for mode in problem.modes
        }
        trust = len(results) / (len(results) + _PRIOR_OUTCOMES)
        ratios = {}
        targets = self.targets(results, questions)
        for (pair, candidate), target in zip(candidates.items(), targets, strict=True):
            if problem.kinds[pair[2]].target_accuracy is None:
                ratios[pair] = 1.0  # it may become better, but does not end sooner
                continue
            ratio = 1.0 - target.saved_epochs / target.own_epochs
            if candidate.score is not None:
                ratio = trust * ratio + (1.0 - trust) * self.prior(candidate.score)
            ratios[pair] = _as_ratio(ratio + losses[candidate.mode])
        return ratios


def _seen(facts: KindFacts) -> tuple[Evaluation, ...]:
    """Return the evaluations of the profile run on the way to the target, by iterations."""
    if facts.accuracy_after_epoch is None:
        return ()
    return (Evaluation(facts.iterations_per_epoch, facts.accuracy_after_epoch),)


def _results(problem: EstimateProblem) -> list[MergeResult]:
    """Return past merges of jobs with an accuracy target."""
    return [
        MergeResult(
            _merge_of(past),
            max(past.target, _LEAST_TARGET),
            past.best,
            None if past.epochs is None else _within(past.epochs, _EPOCHS),
            _within(past.own_epochs, _EPOCHS),
            None if past.lost_epochs is None else _within(past.lost_epochs, _EPOCHS),
        )
        for past in problem.outcomes
        if past.target is not None
    ]


def _bound(saving: Saving) -> float:
    """Return the upper bound of the part of its iterations that a receiver needs, by past merges.

    If their scores hardly differ, the regression over them may give any number for another score.
    """
    return _as_ratio(1.0 - saving.least)


def _as_ratio(part: float) -> float:
    return min(max(part, _LEAST_RATIO), MAX_RATIO)


def _loss_shown(results: Sequence[MergeResult]) -> float:
    """Return the total loss by merges of a mode so far, as a part of the iterations of their receivers.

    It is 0 if they have saved iterations, and small after the first few, which are made for evidence. It is
    the error of past forecasts, and so the expected error of the next one.
    """
    lost = fsum(_needed(result) - 1.0 for result in results)
    return max(lost / (len(results) + _TO_FIND_OUT), 0.0)


def _needed(result: MergeResult) -> float:
    """Return the part of its iterations that a receiver needed. After a failed merge, the iterations until it
    was undone are added to all of its own."""
    epochs = result.own_epochs + WATCHED_EPOCHS if result.epochs is None else result.epochs
    return min(epochs / result.own_epochs, _MOST_NEEDED)


def _candidate(problem: EstimateProblem, pair: Pair, scores: Mapping[tuple[int, int], float]) -> Candidate:
    """Return a merge as input of the regressions; a spatial one has the mean score of both directions."""
    mode, donor, receiver = pair
    giver, taker = problem.kinds[donor], problem.kinds[receiver]
    score, back = scores.get((donor, receiver)), scores.get((receiver, donor))
    if mode == "spatial" and score is not None and back is not None:
        score = (score + back) / 2
    return Candidate(giver.task, taker.task, mode, giver.dataset_samples, taker.dataset_samples, score)


def _merge_of(past: PastMerge) -> Candidate:
    score = None if past.score is None else _clipped(past.score)
    return Candidate(past.donor, past.receiver, past.mode, past.donor_samples, past.receiver_samples, score)


def _clipped(score: float) -> float:
    return _within(score, (-_MOST_SCORE, _MOST_SCORE))


def _within(value: float, bounds: tuple[float, float]) -> float:
    least, most = bounds
    return min(max(value, least), most)
