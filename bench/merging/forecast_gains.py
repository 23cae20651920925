"""Gains forecast by both estimators: the published one (Ymir, section 4.1) and the learned one.

Gains are forecast for pairs that an estimator has not seen, in three splits: without outcomes of the two
tasks together; for receivers that were never seen as receivers; and for a backbone of which nothing was seen,
from the outcomes of the others. The learning curves have neither embeddings nor losses. So the published line
has no scores here, and forecasts the mean gain of the mode; and Eq. 2 has no iterations to compare.
`trained_estimates` compares both on merges of real runs, which have all of it. The epochs of receivers that
met their targets are forecast by the learned estimator alone, and compared with those alone as a forecast.

The form of the learned estimator was chosen on one half of the pairs (`estimates`). The first split has the
other half alone, the others have all pairs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Protocol

from bench.figures import Measurement, Result, Table, Value
from bench.merging.estimates import KnownMerge, tuned_on, visible
from schemas.merging.estimates import EstimatorName
from solvers.merging.errors import GainErrors
from solvers.merging.evidence import MergeQuestion, MergeResult, forecast_targets
from solvers.merging.pairs import Candidate, GainOutcome, forecast_gains
from solvers.merging.published import gain_line

Forecast = Callable[[Sequence[GainOutcome], Sequence[Candidate]], Sequence[float]]
Question = tuple[Sequence[KnownMerge], Sequence[KnownMerge]]
"""Outcomes that are visible, and the merges to forecast from them."""


class MergesOfBackbone(Protocol):
    """Known merges of one base model."""

    @property
    def model(self) -> str:
        """Name of the base model."""

    @property
    def tasks(self) -> Collection[str]:
        """Names of its tasks."""

    @property
    def merges(self) -> Sequence[KnownMerge]:
        """Its merges, each from a receiver's side."""


def learned_gains(seen: Sequence[GainOutcome], asked: Sequence[Candidate]) -> Sequence[float]:
    """Return the gains that the learned estimator forecasts."""
    return [forecast.gain for forecast in forecast_gains(seen, asked)]


def published_gains(seen: Sequence[GainOutcome], asked: Sequence[Candidate]) -> Sequence[float]:
    """Return the gains of the published line, see `published.gain_line`."""
    return [gain_line(seen, candidate.mode).at(candidate.score) for candidate in asked]


FORECASTS: Mapping[EstimatorName, Forecast] = {"learned": learned_gains, "published": published_gains}


def unseen_pairs(backbones: Sequence[MergesOfBackbone], kept_aside: bool = True) -> Iterator[Question]:
    """Yield the merges of each pair that is in the half kept aside, or in the other half, without outcomes of
    that pair."""
    for backbone in backbones:
        for tasks in sorted({merge.tasks for merge in backbone.merges}, key=sorted):
            asked = [
                merge for merge in backbone.merges if merge.tasks == tasks and tuned_on(merge) != kept_aside
            ]
            if asked:
                yield visible(backbone.merges, asked[0]), asked


def unseen_receivers(backbones: Sequence[MergesOfBackbone]) -> Iterator[Question]:
    """Yield the merges of each receiver, without outcomes that it had itself."""
    for backbone in backbones:
        for receiver in backbone.tasks:
            asked = [merge for merge in backbone.merges if merge.candidate.receiver == receiver]
            seen = [merge for merge in backbone.merges if merge.candidate.receiver != receiver]
            if asked and seen:
                yield seen, asked


def unseen_backbones(backbones: Sequence[MergesOfBackbone]) -> Iterator[Question]:
    """Yield the merges of each backbone, with the outcomes of the others."""
    for backbone in backbones:
        seen = [merge for other in backbones if other is not backbone for merge in other.merges]
        if seen and backbone.merges:
            yield seen, backbone.merges


SPLITS: Mapping[str, Callable[[Sequence[MergesOfBackbone]], Iterator[Question]]] = {
    "pair": unseen_pairs,
    "receiver": unseen_receivers,
    "backbone": unseen_backbones,
}


def compare_estimators(backbones: Sequence[MergesOfBackbone]) -> Result:
    """Return how often the sign of a gain is right, and the error of gains, for both estimators; a row has
    the merges of one backbone, or of all."""
    measurements: list[Measurement] = []
    rows: list[dict[str, Value]] = []
    for split, questions_of in SPLITS.items():
        questions = list(questions_of(backbones))
        parts = {
            "all": questions,
            **{each.model: [one for one in questions if one[1][0] in each.merges] for each in backbones},
        }
        for name, forecast in FORECASTS.items():
            for model, part in parts.items():
                figures = _errors(forecast, part).figures()
                rows.append({"estimator": name, "unseen": split, "model": model, **figures._asdict()})
                if name == "learned":
                    rows[-1] |= _epoch_errors(part)
                if model != "all":
                    continue
                for kind, value in (("sign", figures.sign_pct), ("mape", figures.mape_pct)):
                    if value is not None:
                        note = f"of gains; no outcome of the same {split} seen"
                        measurements.append(
                            Measurement(f"estimator_{name}_{split}_{kind}_pct", value, note, figures.pairs)
                        )
    return Result(tuple(measurements), (Table("estimators", rows),))


def _errors(forecast: Forecast, questions: Iterable[Question]) -> GainErrors:
    errors = GainErrors()
    for seen, asked in questions:
        outcomes = [GainOutcome(merge.candidate, merge.gain) for merge in seen]
        answers = forecast(outcomes, [merge.candidate for merge in asked])
        for answer, merge in zip(answers, asked, strict=True):
            errors.add(answer, merge.gain)
    return errors


def _epoch_errors(questions: Iterable[Question]) -> dict[str, Value]:
    """Return the mean error of the epochs of receivers that met their targets, in percent of those alone: of
    the learned estimator, and of the epochs alone as a forecast."""
    off: list[float] = []
    off_as_alone: list[float] = []
    for seen, asked in questions:
        met = [merge for merge in asked if merge.epochs is not None]
        forecasts = forecast_targets(
            [_result(merge) for merge in seen],
            [MergeQuestion(merge.candidate, merge.own_epochs) for merge in met],
        )
        for merge, forecast in zip(met, forecasts, strict=True):
            assert merge.epochs is not None
            off.append(100 * abs(forecast.epochs - merge.epochs) / merge.own_epochs)
            off_as_alone.append(100 * abs(merge.own_epochs - merge.epochs) / merge.own_epochs)
    return {
        "receivers": len(off),
        "epochs_error_pct": fmean(off) if off else None,
        "epochs_error_as_alone_pct": fmean(off_as_alone) if off else None,
    }


def _result(merge: KnownMerge) -> MergeResult:
    """Return a merge as evidence; the receiver's target is its best accuracy alone."""
    target = merge.candidate.receiver_target
    assert target is not None, "tasks of a workload have targets"
    return MergeResult(merge.candidate, target, target * (1 + merge.gain), merge.epochs, merge.own_epochs)
