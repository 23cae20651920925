"""Estimates of jobs and of their merges for the task merger (Ymir, section 4, Figure 7).

`estimator: published` is the printed one (`published`). This module is `learned`, the other one.

The iterations that a job alone needs to its accuracy target are those of the first of these sources that
exists:

1. earlier jobs of the same kind;
2. the evaluation of the profile run after an epoch, if the target was met in it;
3. the share of their allowed iterations that jobs of the same task in other settings needed for their
   targets: with another learning rate, curve, accuracy and target differ;
4. that share for jobs of other tasks;
5. the limit of the job itself, so that an unknown job is not forecast to end early.

Eq. 2 forecasts when a loss is flat, which ends no job here: for `learned`, a loss curve only shows whether a
job may be merged. Scores of transferability and step times are plain arithmetic that a cell does itself
(`transferability`, `lookup_table`). Estimates fit curves and regressions, so they are made in a solver
process. They are a pure function of their arguments.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import fsum

from schemas.merging.estimates import (
    MAX_GAIN,
    MAX_RATIO,
    EstimateProblem,
    EstimateSolution,
    Evidence,
    FinishedKind,
    KindEstimate,
    KindFacts,
    MergeMode,
    PastMerge,
    TransferEstimate,
)
from solvers.merging.evidence import (
    WATCHED_EPOCHS,
    MergeQuestion,
    MergeResult,
    PastMerges,
    Saving,
    forecast_targets,
)
from solvers.merging.loss_curve import LossCurve, fit_loss_curve
from solvers.merging.pairs import Candidate, GainOutcome, forecast_gains
from solvers.merging.published import gain_line, iterations_to_converge

Pair = tuple[MergeMode, int, int]
"""Mode, and the indices of donor and receiver among the kinds."""

_LEAST_RATIO = 0.02
_TO_FIND_OUT = 8
"""Number of assumed prior results with neither saving nor loss."""
_PRIOR_OUTCOMES = 4.0
"""Weight of the evidence of embeddings, in outcomes."""
_RATIO_OF_EQUALS = 0.3
_RATIO_OF_UNMEASURED = 1.3
_fit = lru_cache(256)(fit_loss_curve)
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


def ratio_by_similarity(score: float) -> float:
    """Return the part of its iterations that a job is assumed to need if there is no evidence from merges.
    Scores range from 0, for a donor with an equal task, to -1, for a donor with nothing in common."""
    distance = min(max(-score, 0.0), 1.0)
    return _RATIO_OF_EQUALS + distance * (_RATIO_OF_UNMEASURED - _RATIO_OF_EQUALS)


def estimate(problem: EstimateProblem, time_limit_s: float) -> EstimateSolution:
    """Return all requested estimates. Pairs of kinds without a sound loss curve are left out.

    Args:
        time_limit_s: not used, since all estimates take a second at most.
    """
    del time_limit_s
    if problem.estimator == "published":
        kinds = tuple(map(_converging, problem.kinds))
    else:
        kinds = tuple(_alone(facts, problem.finished) for facts in problem.kinds)
    sound = [index for index, kind in enumerate(kinds) if kind.fault is None]
    return EstimateSolution(kinds=kinds, transfers=tuple(_transfers(problem, kinds, sound)))


def _alone(facts: KindFacts, finished: Sequence[FinishedKind]) -> KindEstimate:
    """Return the forecast iterations of a job of a kind. Without an accuracy target, these are all allowed
    iterations, since nothing else ends it."""
    fit = _fit(facts.losses)
    if facts.target_accuracy is None:
        iterations = facts.most_iterations
    elif facts.finished_iterations is not None:
        iterations = round(facts.finished_iterations)
    else:
        iterations = round(_iterations_to_target(facts, facts.target_accuracy, finished))
    return KindEstimate(
        iterations=min(max(iterations, 1), facts.most_iterations),
        fault=None if isinstance(fit, LossCurve) else fit,
        task=facts.task,
    )


def _iterations_to_target(facts: KindFacts, target: float, finished: Sequence[FinishedKind]) -> float:
    """Return the iterations until a job of a kind without finished jobs has met its target, at most those
    that it is allowed."""
    shown = 0
    if facts.accuracy_after_epoch is not None:
        shown = facts.iterations_per_epoch
        if facts.accuracy_after_epoch >= target:
            return shown
    of_task = [kind for kind in finished if kind.task == facts.task]
    needed = _typical_share(of_task or finished) * facts.most_iterations
    return min(max(needed, shown), facts.most_iterations)


def _typical_share(finished: Sequence[FinishedKind]) -> float:
    """Return the median share of allowed iterations; a task with many kinds counts once."""
    shares: dict[str, list[float]] = {}
    for kind in finished:
        shares.setdefault(kind.task, []).append(kind.share)
    return statistics.median(map(statistics.median, shares.values())) if shares else 1.0


def _transfers(
    problem: EstimateProblem, kinds: Sequence[KindEstimate], sound: Sequence[int]
) -> list[TransferEstimate]:
    """Return the estimates of every pair in every requested mode."""
    scores = {(pair.donor, pair.receiver): _clipped(pair.score) for pair in problem.scores}
    pairs: list[Pair] = []
    for mode in problem.modes:
        pairs += [(mode, a, b) for a in sound for b in sound if mode == "temporal" or a <= b]
    asked = pairs + [(mode, b, a) for mode, a, b in pairs if mode == "spatial"]
    candidates = {pair: _candidate(problem, pair, scores) for pair in asked}
    results = _results(problem)
    is_published = problem.estimator == "published"
    if is_published:
        gains, ratios = _on_line(problem, kinds, candidates)
    else:
        gains, ratios = _gains(problem, candidates), _ratios(problem, results, kinds, candidates)
    past = PastMerges(results, problem.watched_epochs)
    savings = dict(zip(candidates, past.savings(list(candidates.values())), strict=True))
    estimates = []
    for mode, a, b in pairs:
        learners = [(mode, a, b), (mode, b, a)] if mode == "spatial" else [(mode, a, b)]
        # A job without a target gains, but does not end sooner: no completion time gets shorter.
        is_known = all(
            facts.finished_iterations is not None and facts.target_accuracy is not None
            for facts in (problem.kinds[pair[2]] for pair in learners)
        )
        evidence: Evidence = "none"
        if is_known:
            seen = {candidates[pair]: savings[pair] for pair in learners}
            evidence = past.evidence(seen, [ratios[pair] for pair in learners])
        receiver, donor = learners[0], learners[-1]
        estimates.append(
            TransferEstimate(
                mode=mode,
                donor=a,
                receiver=b,
                receiver_gain=gains[receiver],
                receiver_ratio=ratios[receiver],
                donor_gain=gains[donor] if mode == "spatial" else 0.0,
                donor_ratio=ratios[donor] if mode == "spatial" else 1.0,
                evidence=evidence,
                receiver_bound=None if is_published else _bound(savings[receiver]),
                donor_bound=None if is_published or mode == "temporal" else _bound(savings[donor]),
            )
        )
    return estimates


def _converging(facts: KindFacts) -> KindEstimate:
    """Return the iterations of a job until its loss is flat (Eq. 2)."""
    fit = _fit(facts.losses)
    if not isinstance(fit, LossCurve):
        return KindEstimate(iterations=facts.most_iterations, fault=fit, task=facts.task)
    return KindEstimate(iterations=iterations_to_converge(fit, facts.most_iterations), task=facts.task)


def _on_line(
    problem: EstimateProblem, kinds: Sequence[KindEstimate], candidates: Mapping[Pair, Candidate]
) -> tuple[dict[Pair, float], dict[Pair, float]]:
    """Return the gain of each receiver by the line of its mode, and the part of its iterations that it needs
    by Eq. 2 on its transferred loss."""
    lines = {mode: gain_line(_past_gains(problem), mode) for mode in problem.modes}
    gains = {pair: lines[pair[0]].at(candidate.score) for pair, candidate in candidates.items()}
    ratios = {}
    for pair, gain in gains.items():
        facts = problem.kinds[pair[2]]
        curve = _fit(facts.losses)
        assert isinstance(curve, LossCurve), "only sound kinds are in pairs"
        merged = iterations_to_converge(curve, facts.most_iterations, gain)
        ratios[pair] = _as_ratio(merged / kinds[pair[2]].iterations)
    return gains, ratios


def _past_gains(problem: EstimateProblem) -> list[GainOutcome]:
    return [
        GainOutcome(_merge_of(past), _within(past.gain, _GAINS))
        for past in problem.outcomes
        if past.gain is not None
    ]


def _gains(problem: EstimateProblem, candidates: Mapping[Pair, Candidate]) -> dict[Pair, float]:
    forecasts = forecast_gains(_past_gains(problem), list(candidates.values()))
    return {
        pair: min(max(gain.gain, -MAX_GAIN), MAX_GAIN)
        for pair, gain in zip(candidates, forecasts, strict=True)
    }


def _ratios(
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
    losses = {mode: _loss_shown([one for one in results if one.merge.mode == mode]) for mode in problem.modes}
    trust = len(results) / (len(results) + _PRIOR_OUTCOMES)
    ratios = {}
    targets = forecast_targets(results, questions)
    for (pair, candidate), target in zip(candidates.items(), targets, strict=True):
        if _reference(problem.kinds[pair[2]]) is None:
            ratios[pair] = 1.0  # nothing shows what its iterations are worth
            continue
        ratio = 1.0 - target.saved_epochs / target.own_epochs
        if candidate.score is not None:
            ratio = trust * ratio + (1.0 - trust) * ratio_by_similarity(candidate.score)
        ratios[pair] = _as_ratio(ratio + losses[candidate.mode])
    return ratios


def _reference(facts: KindFacts) -> float | None:
    """Return the accuracy by which jobs of a kind are compared: their target, or the accuracy that they reach
    alone."""
    return facts.finished_accuracy if facts.target_accuracy is None else facts.target_accuracy


def _results(problem: EstimateProblem) -> list[MergeResult]:
    """Return past merges of jobs with an accuracy to compare with."""
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

    It is 0 if they have saved iterations. Few results weigh little. It is the error of past forecasts, and so
    the expected error of the next one.
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
    source, target = problem.kinds[donor], problem.kinds[receiver]
    score, back = scores.get((donor, receiver)), scores.get((receiver, donor))
    if mode == "spatial" and score is not None and back is not None:
        score = (score + back) / 2
    return Candidate(source.task, target.task, mode, source.dataset_samples, target.dataset_samples, score)


def _merge_of(past: PastMerge) -> Candidate:
    score = None if past.score is None else _clipped(past.score)
    return Candidate(past.donor, past.receiver, past.mode, past.donor_samples, past.receiver_samples, score)


def _clipped(score: float) -> float:
    return _within(score, (-_MOST_SCORE, _MOST_SCORE))


def _within(value: float, bounds: tuple[float, float]) -> float:
    least, most = bounds
    return min(max(value, least), most)


def smallest() -> EstimateProblem:
    """Return a problem of two kinds, and a former merge of them."""
    return EstimateProblem.model_validate_json(
        """
        {"modes": ["temporal", "spatial"],
         "kinds": [{"task": "a", "dataset_samples": 800, "losses": [2.0, 1.5, 1.2, 1.0, 0.9, 0.85, 0.8, 0.78],
                    "iterations_per_epoch": 100, "most_iterations": 1000, "accuracy_before": 0.1,
                    "target_accuracy": 0.8, "finished_iterations": 300, "finished_accuracy": 0.8},
                   {"task": "b", "dataset_samples": 800, "losses": [2.0, 1.6, 1.3, 1.1, 1.0, 0.95, 0.9, 0.88],
                    "iterations_per_epoch": 100, "most_iterations": 1000, "accuracy_before": 0.1,
                    "target_accuracy": 0.8, "finished_iterations": null, "finished_accuracy": null}],
         "finished": [{"task": "a", "share": 0.3}],
         "scores": [{"donor": 0, "receiver": 1, "score": -0.1}, {"donor": 1, "receiver": 0, "score": -0.1}],
         "outcomes": [{"mode": "temporal", "donor": "a", "donor_samples": 800, "receiver": "b",
                       "receiver_samples": 800, "score": -0.1, "gain": 0.05, "target": 0.8, "best": 0.82,
                       "epochs": 1.0, "own_epochs": 3.0}]}
        """
    )
