"""How well the estimator foretells what was measured: Table 2 on held-back pairs, and what its forecasts
are worth.

The learning curves have no losses and no embeddings, so what a profile run would show is taken from their
beginning, and all else from outcomes of other pairs and from jobs that have finished (`held_back`, `known`).

What is tuned, and on what: the variances of the estimator's effects are found by each fit from what it may
see. Its list of effects and its scale of gains are among the best two of 48 forms on one half of the pairs,
by a hash, with nothing seen but that half; the table has both halves apart. The 48 forms themselves were
drawn up with all pairs in view, so even the other half is not wholly unseen.
"""

import hashlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Measurement, Result, Table
from bench.merging.curves import read_learning_curves
from bench.merging.held_back import SPLITS, Split, foretold_gains, foretold_targets
from bench.merging.known import KnownMerge, KnownTask, known_merges, known_tasks
from bench.merging.measured import MOST_EPOCHS, read_profiles, read_workload
from solvers.merging.accuracy_target import Evaluation, ForetoldEpochs, TargetedJob, epochs_to_target
from solvers.merging.errors import GainErrors, GainFigures, IterationErrors
from solvers.merging.gain import PairEffects
from solvers.merging.iterations import iterations_to_converge
from solvers.merging.loss_curve import FittedCurve, fit_loss_curve
from solvers.merging.merged_target import WATCHED_EPOCHS, ForetoldTarget

PROFILE_ITERATIONS = 100
"""That a profile run is taken to have. It shows the metric after the first epoch where that is no longer, and
never more."""
CLEAR_GAIN = 0.005
"""Smaller ones are hardly beyond what a second run of the same merge would differ by."""
_USUAL = "of the workload"
"""The setting of a task."""


@dataclass(frozen=True)
class Backbone:
    """What is known of one base model."""

    model: str
    tasks: dict[str, KnownTask]
    merges: tuple[KnownMerge, ...]


def read_backbone(folder: Path, model: str) -> Backbone:
    """From a folder of profiles, with its workload `FM-1-<model>.csv`."""
    profiles = read_profiles(folder, model)
    tasks = known_tasks(profiles, read_workload(folder / "workloads" / f"FM-1-{model}.csv"))
    return Backbone(model, tasks, tuple(known_merges(profiles, tasks)))


def estimates(folder: Path, models: Sequence[str] = ("roberta-base", "vit")) -> Result:
    """All figures of the estimator, over all these base models together; tables have them apart."""
    backbones = [read_backbone(folder, model) for model in models]
    gains, gain_table = _gains(backbones)
    alone, alone_table = _alone(folder, backbones)
    merged, merged_table = _merged(backbones)
    return Result((*gains, *alone, *merged), (gain_table, alone_table, merged_table))


def tuned_on(merge: KnownMerge) -> bool:
    """Whether a pair is in the half on which the form of the estimator was chosen."""
    names = "/".join(sorted(merge.tasks))
    return hashlib.blake2b(f"estimates/{names}".encode(), digest_size=8).digest()[0] % 2 == 0


def _gains(backbones: Sequence[Backbone]) -> tuple[list[Measurement], Table]:
    rows: list[tuple[float | str | None, ...]] = []
    pooled: dict[Split, GainFigures] = {}
    clear, other_half = GainErrors(), GainErrors()
    for split in SPLITS:
        every = GainErrors()
        for backbone in backbones:
            told = foretold_gains(backbone.merges, split, PairEffects())
            pairs = [(t.gain, m.gain, m) for t, m in zip(told, backbone.merges, strict=True)]
            parts = {
                "all": pairs,
                "temporal": [pair for pair in pairs if pair[2].candidate.mode == "temporal"],
                "spatial": [pair for pair in pairs if pair[2].candidate.mode == "spatial"],
                f"|G| >= {CLEAR_GAIN}": [pair for pair in pairs if abs(pair[1]) >= CLEAR_GAIN],
                "tuned half": [pair for pair in pairs if tuned_on(pair[2])],
                "other half": [pair for pair in pairs if not tuned_on(pair[2])],
            }
            for part, some in parts.items():
                rows.append((split, backbone.model, part, *_counted(GainErrors(), some).figures()))
            _counted(every, pairs)
            if split == "pair":
                _counted(clear, parts[f"|G| >= {CLEAR_GAIN}"])
                _counted(other_half, parts["other half"])
        pooled[split] = every.figures()
    zero = _counted(GainErrors(), ((0.0, m.gain, m) for b in backbones for m in b.merges)).figures()
    held = pooled["pair"]
    note = "leave-pair-out: no outcome of the two tasks together seen"
    measured = [
        _figure(
            "gain_sign_pct",
            held.sign_pct,
            f"G >= 0; {other_half.figures().sign_pct:.1f} in the half its form was not chosen on; {note}",
            held.pairs,
        ),
        _figure(
            "gain_mape_pct",
            held.mape_pct,
            f"of 1 + G, the metric over that alone; {zero.mape_pct:.2f} for always foretelling 0; {note}",
            held.pairs,
        ),
        _figure(
            "gain_error_pct",
            held.gain_error_pct,
            f"sum of |foretold - real| over sum of |real|, 100 for always foretelling 0; {note}",
            held.pairs,
        ),
        _figure("gain_pearson_r", held.pearson_r, note, held.pairs),
        _figure(
            "gain_sign_clear_pct", clear.figures().sign_pct, f"of |G| >= {CLEAR_GAIN}; {note}", clear.pairs
        ),
    ]
    for split in SPLITS[1:]:
        seen = (
            "no outcome with this receiver seen" if split == "receiver" else "neither task ever seen merged"
        )
        measured.append(_figure(f"gain_sign_{split}_pct", pooled[split].sign_pct, seen, pooled[split].pairs))
    columns = ("split", "model", "part", "pairs", "pearson_r", "mape_pct", "gain_error_pct", "sign_pct")
    return measured, Table("gains", columns, rows)


def _alone(folder: Path, backbones: Sequence[Backbone]) -> tuple[list[Measurement], Table]:
    """Epochs to the target of each task alone, by what is known of it."""
    errors = {
        name: IterationErrors()
        for name in (
            "profile",
            "second job",
            "other setting",
            "profile, earlier target",
            "Eq. 2 in hindsight",
        )
    }
    rows: list[tuple[float | str | None, ...]] = []
    for backbone in backbones:
        curves = read_learning_curves(folder, backbone.model)
        for task in backbone.tasks.values():
            others = [_finished(other) for other in backbone.tasks.values() if other is not task]
            asked = _profiled(task, task.target)
            told = {
                "profile": epochs_to_target(asked, others),
                "second job": epochs_to_target(asked, [*others, _finished(task)]),
            }
            # Half of the way from the first metric to the target.
            early = (task.curve.values[0] + task.target) / 2
            truths = dict.fromkeys(told, task.epochs)
            told["profile, earlier target"] = epochs_to_target(_profiled(task, early), others)
            truths["profile, earlier target"] = task.curve.first_reaching(early) or MOST_EPOCHS
            hindsight = _by_eq_2(task, 0.0)
            if hindsight is not None:
                told["Eq. 2 in hindsight"] = ForetoldEpochs(hindsight, "same_task")
                truths["Eq. 2 in hindsight"] = task.epochs
            for name, foretold in told.items():
                errors[name].add(foretold.epochs, truths[name])
                rows.append((backbone.model, task.name, name, foretold.epochs, truths[name], foretold.basis))
            for setting, curve in curves.single[task.name].items():
                # The job of the workload has finished before; each has its own curve's best as its target.
                if curve.best < curve.values[0] + 0.01 or curve is task.curve:
                    continue
                job = TargetedJob(task.name, str(setting), curve.best, MOST_EPOCHS, ())
                told_epochs = epochs_to_target(job, [_finished(task)]).epochs
                truth = curve.first_reaching(curve.best)
                assert truth is not None
                errors["other setting"].add(told_epochs, truth)
                label = f"other setting {setting.learning_rate}/{setting.accumulation_steps}"
                rows.append((backbone.model, task.name, label, told_epochs, truth, "same_task"))
    figures = {name: count.figures() for name, count in errors.items()}
    profile = figures["profile"]
    seen = f"first epoch seen if of at most {PROFILE_ITERATIONS} iterations; finished jobs of other tasks"
    measured = [
        _figure(
            "iterations_error_pct",
            profile.mean_ape_pct,
            f"mean; {seen}; targets are the curves' best",
            profile.jobs,
        ),
        _figure("iterations_error_max_pct", profile.max_ape_pct, f"the worst; {seen}", profile.jobs),
        _figure(
            "iterations_error_second_job_pct",
            figures["second job"].mean_ape_pct,
            "after an equal job has finished: nothing else than its curve is measured, so this is no test",
            figures["second job"].jobs,
        ),
        _figure(
            "iterations_error_other_setting_pct",
            figures["other setting"].mean_ape_pct,
            "mean; a job of the task with another learning rate or accumulation has finished",
            figures["other setting"].jobs,
        ),
        _figure(
            "iterations_error_early_target_pct",
            figures["profile, earlier target"].mean_ape_pct,
            f"mean, for a target halfway between the first metric and the best; {seen}",
            figures["profile, earlier target"].jobs,
        ),
        _figure(
            "iterations_error_eq2_pct",
            figures["Eq. 2 in hindsight"].mean_ape_pct,
            "mean; Eqs. 2 and 3 per epoch on 1 - metric of the whole curve, as if it were a loss",
            figures["Eq. 2 in hindsight"].jobs,
        ),
    ]
    return measured, Table("iterations", ("model", "task", "known", "foretold", "real", "basis"), rows)


def _merged(backbones: Sequence[Backbone]) -> tuple[list[Measurement], Table]:
    """Epochs to the target of merged jobs, and what it is worth to merge by these forecasts."""
    rows: list[tuple[float | str | None, ...]] = []
    errors, apes, eq2 = IterationErrors(), [], IterationErrors()
    worth: dict[Split, list[float]] = {split: [] for split in SPLITS}
    best: list[float] = []
    met = 0
    both: dict[tuple[str, frozenset[str]], list[tuple[bool, bool]]] = {}
    for split in SPLITS:
        for backbone in backbones:
            told = foretold_targets(backbone.merges, split)
            gains = foretold_gains(backbone.merges, split, PairEffects()) if split == "pair" else ()
            for index, (merge, foretold) in enumerate(zip(backbone.merges, told, strict=True)):
                saved = saved_epochs(merge)
                worth[split].append(saved if foretold.saved_epochs > 0 else 0.0)
                rows.append(_row(split, backbone.model, merge, foretold))
                if split != "pair":
                    continue
                best.append(max(saved, 0.0))
                answer = foretold.probability >= 0.5, merge.epochs is not None
                met += answer[0] == answer[1]
                if merge.candidate.mode == "spatial":
                    both.setdefault((backbone.model, merge.tasks), []).append(answer)
                if merge.epochs is not None:
                    errors.add(foretold.epochs, merge.epochs)
                    apes.append(100.0 * abs(foretold.epochs - merge.epochs) / merge.epochs)
                    by_curve = _by_eq_2(backbone.tasks[merge.candidate.receiver], gains[index].gain)
                    if by_curve is not None:
                        eq2.add(by_curve, merge.epochs)
    figures = errors.figures()
    note = "leave-pair-out, merges that meet their target"
    measured = [
        _figure("iterations_error_merged_pct", figures.mean_ape_pct, f"mean; {note}", figures.jobs),
        _figure(
            "iterations_error_merged_median_pct", statistics.median(apes), f"median; {note}", figures.jobs
        ),
        _figure("iterations_error_merged_max_pct", figures.max_ape_pct, f"the worst; {note}", figures.jobs),
        _figure(
            "iterations_error_merged_eq2_pct",
            eq2.figures().mean_ape_pct,
            f"mean; Eq. 2 on (1 - metric of the whole single curve) / (1 + foretold G); {note}",
            eq2.jobs,
        ),
        _figure(
            "merged_target_met_pct",
            100.0 * met / len(best),
            "right about whether the target is met; leave-pair-out",
            len(best),
        ),
    ]
    right = [all(told for told, _ in pair) == all(real for _, real in pair) for pair in both.values()]
    measured.append(
        _figure(
            "spatial_both_met_pct",
            100.0 * sum(right) / len(right),
            "right about whether both jobs of a spatial merge meet their targets; leave-pair-out",
            len(right),
        )
    )
    for split in SPLITS:
        name = "merges_worth_pct" if split == "pair" else f"merges_worth_{split}_pct"
        measured.append(
            _figure(
                name,
                100.0 * sum(worth[split]) / sum(best),
                "epochs saved by merges foretold to be worth it, of those that perfect foresight saves; "
                f"one that misses its target costs {WATCHED_EPOCHS:g} epochs; split `{split}`",
                len(best),
            )
        )
    columns = (
        "split",
        "model",
        "donor",
        "receiver",
        "mode",
        "probability",
        "foretold",
        "real",
        "alone",
        "worth",
    )
    return measured, Table("merged", columns, rows)


def saved_epochs(merge: KnownMerge) -> float:
    """What a merge is really worth to its receiver, in its own epochs."""
    return -WATCHED_EPOCHS if merge.epochs is None else float(merge.own_epochs - merge.epochs)


def _row(split: str, model: str, merge: KnownMerge, told: ForetoldTarget) -> tuple[float | str | None, ...]:
    candidate = merge.candidate
    return (
        split,
        model,
        candidate.donor,
        candidate.receiver,
        candidate.mode,
        told.probability,
        told.epochs,
        merge.epochs,
        merge.own_epochs,
        told.saved_epochs,
    )


def _counted(errors: GainErrors, pairs: Iterable[tuple[float, float, KnownMerge]]) -> GainErrors:
    for foretold, real, _ in pairs:
        errors.add(foretold, real)
    return errors


def _finished(task: KnownTask) -> TargetedJob:
    # Evaluations are rounded to six decimals, targets are not: what met a target has exactly met it.
    seen = tuple(
        Evaluation(float(epoch), max(value, task.target) if epoch == task.epochs else value)
        for epoch, value in enumerate(task.curve.values, 1)
    )
    return TargetedJob(task.name, _USUAL, task.target, MOST_EPOCHS, seen)


def _profiled(task: KnownTask, target: float) -> TargetedJob:
    """A new job after its profile run."""
    shown = _finished(task).evaluations[:1] if task.iterations_per_epoch <= PROFILE_ITERATIONS else ()
    return TargetedJob(task.name, _USUAL, target, MOST_EPOCHS, shown)


def _by_eq_2(task: KnownTask, gain: float) -> float | None:
    """Epochs by Eqs. 2 and 3; None where the curve has no fit."""
    fit = fit_loss_curve([1.0 - value for value in task.curve.values])
    return (
        float(iterations_to_converge(fit.curve, MOST_EPOCHS, gain)) if isinstance(fit, FittedCurve) else None
    )


def _figure(name: str, value: float | None, note: str, runs: int) -> Measurement:
    if value is None:
        raise ValueError(f"{name} is not defined: the folder has no pairs to measure it on")
    return Measurement(name, value, note, runs)
