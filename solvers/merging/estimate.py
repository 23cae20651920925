"""The estimator: iterations of jobs alone, and what merges of two kinds would bring (Ymir, section 4).

It answers a zone's question as a whole, in a solver process.
"""

import statistics
from collections.abc import Sequence

from schemas.merging.estimates import (
    EstimateProblem,
    EstimateSolution,
    KindEstimate,
    KindFacts,
    MergeMode,
    PastMerge,
    TransferEstimate,
)
from solvers.merging.gain import GainOutcome, PairEffects
from solvers.merging.loss_curve import UnusableTrace, fit_loss_curve
from solvers.merging.merged_target import MergeQuestion, MergeResult, foretell_targets
from solvers.merging.pairs import Candidate

_LEAST_RATIO = 0.02
_PRIOR_OUTCOMES = 4.0
"""What embeddings alone suggest counts as much as so many outcomes."""
_RATIO_OF_EQUALS = 0.3
_RATIO_OF_STRANGERS = 1.3
"""Iterations that a job is taken to need after a task that is the same as its own, or has nothing in common
with it, over those alone, while no merge has shown otherwise."""


def estimate(problem: EstimateProblem, time_limit_s: float) -> EstimateSolution:
    """Foretell everything that is asked; takes a second at most.

    Args:
        time_limit_s: is not needed.
    """
    del time_limit_s
    kinds = tuple(_alone(facts, problem.shares) for facts in problem.kinds)
    sound = [index for index, kind in enumerate(kinds) if not kind.fault]
    return EstimateSolution(kinds=kinds, transfers=tuple(_transfers(problem, kinds, sound)))


def smallest() -> EstimateProblem:
    """Two kinds, and a merge of them that was made before."""
    return EstimateProblem.model_validate_json(
        """
        {"modes": ["temporal", "spatial"],
         "kinds": [{"task": "a", "dataset_samples": 800, "losses": [2.0, 1.5, 1.2, 1.0, 0.9, 0.85, 0.8, 0.78],
                    "iterations_per_epoch": 100, "most_iterations": 1000, "accuracy_before": 0.1,
                    "target_accuracy": 0.8, "finished_iterations": 300, "finished_accuracy": 0.8},
                   {"task": "b", "dataset_samples": 800, "losses": [2.0, 1.6, 1.3, 1.1, 1.0, 0.95, 0.9, 0.88],
                    "iterations_per_epoch": 100, "most_iterations": 1000, "accuracy_before": 0.1,
                    "target_accuracy": 0.8, "finished_iterations": null, "finished_accuracy": null}],
         "shares": [0.3],
         "scores": [{"donor": 0, "receiver": 1, "score": -0.1}, {"donor": 1, "receiver": 0, "score": -0.1}],
         "outcomes": [{"mode": "temporal", "donor": "a", "donor_samples": 800, "receiver": "b",
                       "receiver_samples": 800, "score": -0.1, "gain": 0.05, "target": 0.8, "best": 0.82,
                       "epochs": 1.0, "own_epochs": 3.0}]}
        """
    )


def _alone(facts: KindFacts, shares: Sequence[float]) -> KindEstimate:
    """How long a job of a kind takes: all that it is allowed where no accuracy is to be reached, for nothing
    else ends it. Else as long as those before it; or the part of its bound that others needed, or all of it
    where none has shown."""
    fitted = fit_loss_curve(facts.losses)
    fault = f"losses: {fitted.detail}" if isinstance(fitted, UnusableTrace) else ""
    if facts.target_accuracy is None:
        iterations = facts.most_iterations
    elif facts.finished_iterations is not None:
        iterations = round(facts.finished_iterations)
    else:
        iterations = round(statistics.median(shares or (1.0,)) * facts.most_iterations)
    return KindEstimate(iterations=min(max(iterations, 1), facts.most_iterations), fault=fault)


def _transfers(
    problem: EstimateProblem, kinds: Sequence[KindEstimate], sound: Sequence[int]
) -> list[TransferEstimate]:
    """Every pair, in every mode that is asked about."""
    scores = {(pair.donor, pair.receiver): pair.score for pair in problem.scores}
    pairs: list[tuple[MergeMode, int, int]] = []
    for mode in problem.modes:
        pairs += [(mode, a, b) for a in sound for b in sound if mode == "temporal" or a <= b]
    asked = [(mode, a, b) for mode, a, b in pairs]
    asked += [(mode, b, a) for mode, a, b in pairs if mode == "spatial"]
    candidates = {pair: _candidate(problem, pair, scores) for pair in asked}
    gains, ratios = _foretold(problem, kinds, candidates)
    return [
        TransferEstimate(
            mode=mode,
            donor=a,
            receiver=b,
            receiver_gain=gains[mode, a, b],
            receiver_ratio=ratios[mode, a, b],
            donor_gain=gains[mode, b, a] if mode == "spatial" else 0.0,
            donor_ratio=ratios[mode, b, a] if mode == "spatial" else 1.0,
        )
        for mode, a, b in pairs
    ]


Pair = tuple[MergeMode, int, int]


def _candidate(problem: EstimateProblem, pair: Pair, scores: dict[tuple[int, int], float]) -> Candidate:
    mode, donor, receiver = pair
    giver, taker = problem.kinds[donor], problem.kinds[receiver]
    score = scores.get((donor, receiver))
    back = scores.get((receiver, donor))
    if mode == "spatial" and score is not None and back is not None:
        score = (score + back) / 2
    return Candidate(giver.task, taker.task, mode, giver.dataset_samples, taker.dataset_samples, score)


def _foretold(
    problem: EstimateProblem, kinds: Sequence[KindEstimate], candidates: dict[Pair, Candidate]
) -> tuple[dict[Pair, float], dict[Pair, float]]:
    """Gains, and the part of its iterations that each receiver needs: what is expected, failures counted."""
    gained = [GainOutcome(_past(past), past.gain) for past in problem.outcomes if past.gain is not None]
    results = [
        MergeResult(_past(past), past.target, past.best, past.epochs, past.own_epochs)
        for past in problem.outcomes
        if past.target is not None
    ]
    questions = {
        pair: MergeQuestion(
            candidate, kinds[pair[2]].iterations / problem.kinds[pair[2]].iterations_per_epoch
        )
        for pair, candidate in candidates.items()
    }
    gains = PairEffects().foretell(gained, list(candidates.values()))
    targets = foretell_targets(results, list(questions.values()))
    trust = len(results) / (len(results) + _PRIOR_OUTCOMES)
    ratios = {}
    for (pair, candidate), target in zip(candidates.items(), targets, strict=True):
        if problem.kinds[pair[2]].target_accuracy is None:
            ratios[pair] = 1.0  # it may become better, and is not done sooner
            continue
        shown = 1.0 - target.saved_epochs / target.own_epochs
        if candidate.score is not None:
            shown = trust * shown + (1.0 - trust) * _prior_ratio(candidate.score)
        ratios[pair] = max(shown, _LEAST_RATIO)
    return {pair: gain.gain for pair, gain in zip(candidates, gains, strict=True)}, ratios


def _prior_ratio(score: float) -> float:
    """From the similarity alone: a score of 0 is that of equal tasks, -1 that of tasks without anything in
    common."""
    distance = min(max(-score, 0.0), 1.0)
    return _RATIO_OF_EQUALS + distance * (_RATIO_OF_STRANGERS - _RATIO_OF_EQUALS)


def _past(past: PastMerge) -> Candidate:
    return Candidate(
        past.donor, past.receiver, past.mode, past.donor_samples, past.receiver_samples, past.score
    )
