"""Both estimators on merges of real runs: gains and iterations, by the solver's own function.

A question has what a zone would send: the kinds of a base model with their profile runs, scores of Task2Vec,
the results of jobs alone, and outcomes of past merges. Splits are those of `estimators`. Another base model's
tasks have other names, so that nothing is known of a task.

Iterations alone are forecast before the first job of a kind has ended, and after those of the other tasks.
Those of merges are of temporal ones whose receivers met the target, their best accuracy alone: for `learned`
those alone, which a zone has by then, times the forecast part; for `published` Eq. 2 on the transferred
loss. Their errors are relative to the iterations alone, since some receivers meet the target at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import NamedTuple

from bench.figures import Measurement, Result, Table, Value
from bench.merging.estimates import KnownMerge
from bench.merging.forecast_gains import SPLITS, Question, unseen_pairs
from bench.merging.trained import (
    EVALUATIONS_PER_EPOCH,
    TrainedBackbone,
    TrainedMerge,
    TrainedPairs,
    TrainedTask,
)
from schemas.merging.estimates import (
    MERGE_MODES,
    EstimateProblem,
    EstimatorName,
    FinishedKind,
    KindFacts,
    MergeMode,
    PairScore,
    PastMerge,
)
from solvers.merging.errors import GainErrors, GainFigures, IterationErrors, IterationFigures
from solvers.merging.estimator import estimate
from solvers.merging.pairs import Candidate
from solvers.merging.transferability import Task2Vec

Pair = tuple[MergeMode, str, str]
"""Mode, donor and receiver."""
ESTIMATORS: tuple[EstimatorName, ...] = ("learned", "published")
_LIMIT_S = 60.0


class ReceiverForecast(NamedTuple):
    """Forecast of a merge for one receiver."""

    gain: float
    iterations: float


class MergedIterations(NamedTuple):
    """Error of the iterations of merged receivers, in percent of those alone; None without receivers."""

    receivers: int
    error_of_alone_pct: float | None


@dataclass(frozen=True)
class TrainedTasks:
    """The tasks and merges of one base model; see `MergesOfBackbone`."""

    trained: TrainedBackbone

    @property
    def model(self) -> str:
        """Name of the base model."""
        return self.trained.model

    @cached_property
    def tasks(self) -> Mapping[str, TrainedTask]:
        """Tasks by their names, which have that of the base model."""
        return {self._name(task.name): task for task in self.trained.tasks}

    @cached_property
    def scores(self) -> Mapping[tuple[str, str], float]:
        """Score of each pair, a task with itself included."""
        score = Task2Vec().score
        return {
            (a, b): score(donor.embedding, receiver.embedding)
            for a, donor in self.tasks.items()
            for b, receiver in self.tasks.items()
        }

    @cached_property
    def by_pair(self) -> Mapping[tuple[MergeMode, str, str], TrainedMerge]:
        """Merges by mode, donor and receiver."""
        return {
            (one.mode, self._name(one.donor), self._name(one.receiver)): one for one in self.trained.merges
        }

    @cached_property
    def merges(self) -> Sequence[KnownMerge]:
        return [self._known(*pair, merge) for pair, merge in self.by_pair.items()]

    def needed_in(self, merge: KnownMerge) -> int:
        """Return the iterations of a receiver until its target, which it met."""
        needed = self.by_pair[_pair(merge)].needed(self.tasks[merge.candidate.receiver].target)
        assert needed is not None, "the target was met"
        return needed

    def _name(self, task: str) -> str:
        return f"{task} on {self.trained.model}"

    def _known(self, mode: MergeMode, donor: str, receiver: str, merge: TrainedMerge) -> KnownMerge:
        source, target = self.tasks[donor], self.tasks[receiver]
        score, needed = self.scores[donor, receiver], merge.needed(target.target)
        if mode == "spatial":
            score = (score + self.scores[receiver, donor]) / 2
        return KnownMerge(
            Candidate(donor, receiver, mode, source.samples, target.samples, score),
            gain=max(merge.accuracies) / target.target - 1.0,
            epochs=None if needed is None else -(-needed // target.iterations_per_epoch),
            own_epochs=-(-target.needed // target.iterations_per_epoch),
        )


def compare_on_trained(pairs: TrainedPairs) -> Result:
    """Return signs and errors of gains and errors of iterations, for both estimators on trained pairs.

    The default estimator was chosen on half of the pairs, which only the table has.
    """
    backbones = [TrainedTasks(each) for each in pairs.backbones]
    measurements: list[Measurement] = []
    rows: list[dict[str, Value]] = []
    for name in ESTIMATORS:
        alone = _alone(name, backbones)
        figures = [("alone_iterations", alone.mean_ape_pct, alone.jobs)]
        rows.append({"estimator": name, "unseen": "job alone", **alone._asdict()})
        for split, questions in SPLITS.items():
            gains, iterations = _errors(name, backbones, questions(backbones))
            rows.append({"estimator": name, "unseen": split, **gains._asdict(), **iterations._asdict()})
            figures += [
                (f"{split}_sign", gains.sign_pct, gains.pairs),
                (f"{split}_mape", gains.mape_pct, gains.pairs),
                (f"{split}_iterations", iterations.error_of_alone_pct, iterations.receivers),
            ]
        gains, iterations = _errors(name, backbones, unseen_pairs(backbones, kept_aside=False))
        rows.append(
            {"estimator": name, "unseen": "pair, other half", **gains._asdict(), **iterations._asdict()}
        )
        measurements += [
            Measurement(f"estimator_{name}_trained_{what}_pct", value, "merges of real runs", runs)
            for what, value, runs in figures
            if value is not None
        ]
    return Result(tuple(measurements), (Table("trained_estimators", rows),))


def _errors(
    name: EstimatorName, backbones: Sequence[TrainedTasks], questions: Iterable[Question]
) -> tuple[GainFigures, MergedIterations]:
    gains = GainErrors()
    off: list[float] = []
    of_task = {task: backbone for backbone in backbones for task in backbone.tasks}
    for seen, asked in questions:
        outcomes = tuple(_past(of_task[merge.candidate.receiver], merge) for merge in seen)
        backbone = of_task[asked[0].candidate.receiver]
        forecasts = _forecasts(name, backbone, outcomes)
        for merge in asked:
            forecast = forecasts.get(_pair(merge))
            if forecast is None:
                continue  # the loss of a task has no curve, so that a zone does not merge it
            gains.add(forecast.gain, merge.gain)
            if merge.candidate.mode == "temporal" and merge.epochs is not None:
                alone = backbone.tasks[merge.candidate.receiver].needed
                off.append(abs(forecast.iterations - backbone.needed_in(merge)) / alone)
    return gains.figures(), MergedIterations(len(off), 100.0 * mean(off) if off else None)


def _forecasts(
    name: EstimatorName, backbone: TrainedTasks, outcomes: tuple[PastMerge, ...]
) -> Mapping[Pair, ReceiverForecast]:
    """Return the forecast of each merge on a base model, from its receiver's side."""
    names = list(backbone.tasks)
    kinds = tuple(_facts(task, backbone.tasks[task], is_finished=True) for task in names)
    solution = estimate(_problem(name, kinds, backbone.scores, outcomes), _LIMIT_S)
    alone = [kind.iterations for kind in solution.kinds]
    found: dict[Pair, ReceiverForecast] = {}
    for one in solution.transfers:
        donor, receiver = names[one.donor], names[one.receiver]
        merged = one.receiver_ratio * alone[one.receiver]
        found[one.mode, donor, receiver] = ReceiverForecast(one.receiver_gain, merged)
        if one.mode == "spatial":
            back = one.donor_ratio * alone[one.donor]
            found[one.mode, receiver, donor] = ReceiverForecast(one.donor_gain, back)
    return found


def _alone(name: EstimatorName, backbones: Sequence[TrainedTasks]) -> IterationFigures:
    """Return errors of the iterations of each task alone, after jobs of all others of its base model."""
    errors = IterationErrors()
    for backbone in backbones:
        for name_of, task in backbone.tasks.items():
            others = tuple(
                FinishedKind(task=other, share=each.needed / each.iterations[-1])
                for other, each in backbone.tasks.items()
                if other != name_of
            )
            problem = _problem(name, (_facts(name_of, task, is_finished=False),), {}, (), others)
            (kind,) = estimate(problem, _LIMIT_S).kinds
            errors.add(kind.iterations, task.needed)
    return errors.figures()


def _problem(
    name: EstimatorName,
    kinds: tuple[KindFacts, ...],
    scores: Mapping[tuple[str, str], float],
    outcomes: tuple[PastMerge, ...],
    finished: tuple[FinishedKind, ...] = (),
) -> EstimateProblem:
    places = {kind.task: place for place, kind in enumerate(kinds)}
    return EstimateProblem(
        estimator=name,
        modes=MERGE_MODES,
        kinds=kinds,
        finished=finished,
        scores=tuple(
            PairScore(donor=places[a], receiver=places[b], score=score) for (a, b), score in scores.items()
        ),
        outcomes=outcomes,
    )


def _facts(name: str, task: TrainedTask, is_finished: bool) -> KindFacts:
    return KindFacts(
        task=name,
        dataset_samples=task.samples,
        losses=task.losses,
        iterations_per_epoch=task.iterations_per_epoch,
        most_iterations=task.iterations[-1],
        accuracy_before=task.accuracies[0],
        accuracy_after_epoch=task.accuracies[EVALUATIONS_PER_EPOCH],
        target_accuracy=task.target,
        finished_iterations=task.needed if is_finished else None,
        finished_accuracy=task.target if is_finished else None,
    )


def _past(backbone: TrainedTasks, merge: KnownMerge) -> PastMerge:
    candidate, task = merge.candidate, backbone.tasks[merge.candidate.receiver]
    needed = backbone.by_pair[_pair(merge)].needed(task.target)
    return PastMerge(
        mode=candidate.mode,
        donor=candidate.donor,
        donor_samples=candidate.donor_samples,
        receiver=candidate.receiver,
        receiver_samples=candidate.receiver_samples,
        score=candidate.score,
        gain=merge.gain,
        target=task.target,
        best=max(backbone.by_pair[_pair(merge)].accuracies),
        epochs=None if needed is None else needed / task.iterations_per_epoch,
        own_epochs=task.needed / task.iterations_per_epoch,
    )


def _pair(merge: KnownMerge) -> Pair:
    return merge.candidate.mode, merge.candidate.donor, merge.candidate.receiver
