"""Errors of the estimator against measurements: Table 2 on held-back pairs, and what its forecasts
are worth.

The learning curves have no losses and no embeddings, so merges are foretold from outcomes of other pairs
alone (`held_back`, `known`). What jobs need alone is what a zone foretells that has profiled them, the
beginning of their curves for losses (`asked_zone`).

What is tuned, and on what: the variances of the estimator's effects are found by each fit from what it may
see. Its list of effects and its scale of gains are among the best two of 48 forms on one half of the pairs,
by a hash, with nothing seen but that half; the table has both halves apart. The 48 forms themselves were
drawn up with all pairs in view, so even the other half is not wholly unseen.
"""

import hashlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import Measurement, Result, Table
from bench.merging.asked_zone import AskedZone, in_setting
from bench.merging.curves import Curve
from bench.merging.held_back import SPLITS, Split, foretold_gains, foretold_targets
from bench.merging.known import KnownMerge, KnownTask, known_merges, known_tasks
from bench.merging.measured import MOST_EPOCHS, Profiles, WorkloadJob, read_profiles, read_workload
from schemas.merging.settings import MergingPolicy
from solvers.merging.errors import GainErrors, GainFigures, IterationErrors
from solvers.merging.gain import PairEffects
from solvers.merging.iterations import iterations_to_converge
from solvers.merging.loss_curve import FittedCurve, fit_loss_curve
from solvers.merging.merged_target import WATCHED_EPOCHS, TargetForecast

CLEAR_GAIN = 0.005
"""Smaller ones are hardly beyond what a second run of the same merge would differ by."""


@dataclass(frozen=True)
class Backbone:
    """Measurements of one base model."""

    profiles: Profiles
    jobs: Mapping[str, WorkloadJob]
    """The first of the workload, by task."""
    tasks: Mapping[str, KnownTask]
    merges: tuple[KnownMerge, ...]

    @property
    def model(self) -> str:
        """Its name."""
        return self.profiles.model


def read_backbone(folder: Path, model: str) -> Backbone:
    """From a folder of profiles, with its workload `FM-1-<model>.csv`."""
    profiles = read_profiles(folder, model)
    jobs = read_workload(folder / "workloads" / f"FM-1-{model}.csv")
    tasks = known_tasks(profiles, jobs)
    by_task = {job.task: job for job in reversed(jobs)}
    return Backbone(
        profiles, {task: by_task[task] for task in tasks}, tasks, tuple(known_merges(profiles, tasks))
    )


def estimates(
    folder: Path, models: Sequence[str] = ("roberta-base", "vit"), splits: Sequence[Split] = SPLITS
) -> Result:
    """All figures of the estimator, over all these base models together; tables have them apart.

    Args:
        splits: of `SPLITS`, in its order. The figures with a goal are of the first. Figures that are not
            defined, as the folder has too few pairs, are left out.
    """
    backbones = [read_backbone(folder, model) for model in models]
    gains, gain_table = _gains(backbones, splits)
    alone, alone_table = _alone(folder, backbones)
    merged, merged_table = _merged(backbones, splits)
    defined = tuple(one for one in (*gains, *alone, *merged) if one is not None)
    return Result(defined, (gain_table, alone_table, merged_table))


def tuned_on(merge: KnownMerge) -> bool:
    """Whether a pair is in the half on which the form of the estimator was chosen."""
    names = "/".join(sorted(merge.tasks))
    return hashlib.blake2b(f"estimates/{names}".encode(), digest_size=8).digest()[0] % 2 == 0


def _gains(backbones: Sequence[Backbone], splits: Sequence[Split]) -> tuple[list[Measurement | None], Table]:
    rows: list[tuple[float | str | None, ...]] = []
    pooled: dict[Split, GainFigures] = {}
    clear, other_half = GainErrors(), GainErrors()
    for split in splits:
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
    measured: list[Measurement | None] = [
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
    for split in splits[1:]:
        seen = (
            "no outcome with this receiver seen" if split == "receiver" else "neither task ever seen merged"
        )
        measured.append(_figure(f"gain_sign_{split}_pct", pooled[split].sign_pct, seen, pooled[split].pairs))
    columns = ("split", "model", "part", "pairs", "pearson_r", "mape_pct", "gain_error_pct", "sign_pct")
    return measured, Table("gains", columns, rows)


def _alone(folder: Path, backbones: Sequence[Backbone]) -> tuple[list[Measurement | None], Table]:
    """Epochs to the target of each task alone, as a zone foretells them."""
    errors = {
        name: IterationErrors()
        for name in (
            "profile",
            "second job",
            "other setting",
            "profile, earlier target",
            "profile, new zone",
            "Eq. 2 in hindsight",
        )
    }
    rows: list[tuple[float | str | None, ...]] = []
    for backbone in backbones:
        others = {task: list(_in_other_settings(backbone, task)) for task in backbone.tasks}
        every = [*backbone.jobs.values(), *(job for of_task in others.values() for job, _ in of_task)]
        zone = AskedZone(folder, backbone.profiles, every)
        for task in backbone.tasks.values():
            job = backbone.jobs[task.name]
            finished = [other for name, other in backbone.jobs.items() if name != task.name]
            # Half of the way from the first metric to the target.
            early = (task.curve.values[0] + task.target) / 2
            asked = [
                ("profile", job, finished, task.epochs),
                ("second job", job, [*finished, job], task.epochs),
                ("profile, new zone", job, [], task.epochs),
                (
                    "profile, earlier target",
                    replace(job, target=early),
                    finished,
                    task.curve.first_reaching(early) or MOST_EPOCHS,
                ),
            ]
            # The job of the workload has finished before; each has its own curve's best as its target.
            for other, curve in others[task.name]:
                truth = curve.first_reaching(curve.best)
                assert truth is not None
                asked.append(("other setting", other, [job], truth))
            for known, new, before, truth in asked:
                told = zone.foretold(new, before)
                errors[known].add(told.epochs, truth)
                label = known
                if known == "other setting":
                    label += f" {new.setting.learning_rate}/{new.setting.accumulation_steps}"
                rows.append((backbone.model, task.name, label, told.accuracy_after_epoch, told.epochs, truth))
            hindsight = _by_eq_2(task, 0.0)
            if hindsight is not None:
                errors["Eq. 2 in hindsight"].add(hindsight, task.epochs)
                rows.append((backbone.model, task.name, "Eq. 2 in hindsight", None, hindsight, task.epochs))
    figures = {name: count.figures() for name, count in errors.items()}
    profile = figures["profile"]
    most = MergingPolicy().profile_iterations
    seen = f"first epoch seen if of at most {most} iterations; finished jobs of other tasks"
    measured: list[Measurement | None] = [
        _figure(
            "iterations_error_pct",
            profile.mean_ape_pct,
            f"mean; {seen}; targets are the curves' best",
            profile.jobs,
        ),
        _figure("iterations_error_max_pct", profile.max_ape_pct, f"the worst; {seen}", profile.jobs),
        _figure(
            "iterations_error_new_zone_pct",
            figures["profile, new zone"].mean_ape_pct,
            f"mean; first epoch seen if of at most {most} iterations; no job has finished",
            figures["profile, new zone"].jobs,
        ),
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
    return measured, Table(
        "iterations", ("model", "task", "known", "accuracy_after_epoch", "foretold", "real"), rows
    )


def _merged(backbones: Sequence[Backbone], splits: Sequence[Split]) -> tuple[list[Measurement | None], Table]:
    """Epochs to the target of merged jobs, and what it is worth to merge by these forecasts."""
    rows: list[tuple[float | str | None, ...]] = []
    errors, apes, eq2 = IterationErrors(), [], IterationErrors()
    worth: dict[Split, list[float]] = {split: [] for split in splits}
    best: list[float] = []
    met = 0
    both: dict[tuple[str, frozenset[str]], list[tuple[bool, bool]]] = {}
    for split in splits:
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
    measured: list[Measurement | None] = [
        _figure("iterations_error_merged_pct", figures.mean_ape_pct, f"mean; {note}", figures.jobs),
        _figure(
            "iterations_error_merged_median_pct",
            statistics.median(apes) if apes else None,
            f"median; {note}",
            figures.jobs,
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
            _pct(met, len(best)),
            "right about whether the target is met; leave-pair-out",
            len(best),
        ),
    ]
    right = [all(told for told, _ in pair) == all(real for _, real in pair) for pair in both.values()]
    measured.append(
        _figure(
            "spatial_both_met_pct",
            _pct(sum(right), len(right)),
            "right about whether both jobs of a spatial merge meet their targets; leave-pair-out",
            len(right),
        )
    )
    for split in splits:
        name = "merges_worth_pct" if split == "pair" else f"merges_worth_{split}_pct"
        measured.append(
            _figure(
                name,
                _pct(sum(worth[split]), sum(best)),
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
    """Return the measured saving of a merge for its receiver, in its own epochs."""
    return -WATCHED_EPOCHS if merge.epochs is None else float(merge.own_epochs - merge.epochs)


def _row(split: str, model: str, merge: KnownMerge, told: TargetForecast) -> tuple[float | str | None, ...]:
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


def _in_other_settings(backbone: Backbone, task: str) -> Iterator[tuple[WorkloadJob, Curve]]:
    """Jobs of the task with another learning rate or accumulation, that have learned anything."""
    usual = backbone.jobs[task]
    for setting, curve in backbone.profiles.curves.single[task].items():
        if setting != usual.setting and curve.best >= curve.values[0] + 0.01:
            yield in_setting(usual, setting, curve.best), curve


def _by_eq_2(task: KnownTask, gain: float) -> float | None:
    """Epochs by Eqs. 2 and 3; None where the curve has no fit."""
    fit = fit_loss_curve([1.0 - value for value in task.curve.values])
    return (
        float(iterations_to_converge(fit.curve, MOST_EPOCHS, gain)) if isinstance(fit, FittedCurve) else None
    )


def _figure(name: str, value: float | None, note: str, runs: int) -> Measurement | None:
    """None where the value is not defined."""
    return None if value is None else Measurement(name, value, note, runs)


def _pct(part: float, whole: float) -> float | None:
    return 100.0 * part / whole if whole else None
