"""Table 7: speedup by each score of transferability as the choice of donors, measured by training.

For each task, the donor with the best score is used, even if it delays the task, and without the safety net
of a zone. Every pair is trained, so that the best donor in hindsight and a random one are the ends of the
scale. No score uses an outcome of a pair, nor validation data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from bench.charts import Bars
from bench.figures import Measurement, Result, Table, Value
from bench.merging.transfers import (
    FULL,
    METRICS,
    QUICK,
    MeasuredTransfers,
    Pair,
    TransferExtent,
    measure_transfers,
)

PUBLISHED: Sequence[tuple[str, str, float, float]] = (
    ("task2vec", "ViT-Base", 1.30, 24.63),
    ("task2feat", "ViT-Base", 1.26, 5.87),
    ("leep", "ViT-Base", 0.85, 30.50),
    ("task2vec", "RoBERTa-Base", 1.57, 75.64),
    ("task2feat", "RoBERTa-Base", 1.12, 923.46),
    ("leep", "RoBERTa-Base", 0.74, 202.46),
    ("task2vec", "Vicuna-7B", 1.72, 102.85),
    ("task2feat", "Vicuna-7B", 0.99, 838.03),
)
"""Table 7: metric, model, speedup of the job completion time, and maximal profiling overhead in seconds."""
HINDSIGHT, RANDOM = "best in hindsight", "random"

Donors = Mapping[str, Sequence[str]]
"""Possible donors by receiver, with equal probabilities."""


@dataclass(frozen=True)
class Worth:
    """Effect of a choice of donors."""

    speedup: float
    """Iterations alone over those after the donor, as a mean over receivers."""
    saved_pct: float
    """Saved part of the iterations that all receivers need alone; negative if the choice costs some."""
    hurt_pct: float
    """Part of the receivers that need more than alone."""


def measure_transferability(quick: bool, seed: int) -> Result:
    """Measure `task2vec_speedup`, `task2vec_vs_random`, `task2vec_vs_best_rival`, and Table 7."""
    extent = QUICK if quick else FULL
    return transferability(measure_transfers(extent, seed), extent)


def best_donors(scores: Mapping[Pair, float]) -> dict[str, str]:
    """Return the donor of the largest score by receiver; of equals, the first by name."""
    found: dict[str, str] = {}
    for donor, receiver in sorted(scores):
        present = found.get(receiver)
        if present is None or scores[donor, receiver] > scores[present, receiver]:
            found[receiver] = donor
    return found


def donors_by_choice(transfers: MeasuredTransfers) -> dict[str, Donors]:
    """Return the choice of each metric, the best in hindsight, and a random one."""
    saved = {pair: -float(iterations) for pair, iterations in transfers.merged.items()}
    by_score = {metric: scores.of for metric, scores in transfers.scores.items()} | {HINDSIGHT: saved}
    chosen: dict[str, Donors] = {
        choice: {receiver: (donor,) for receiver, donor in best_donors(scores).items()}
        for choice, scores in by_score.items()
    }
    every = {
        receiver: tuple(donor for donor, other in transfers.merged if other == receiver)
        for receiver in transfers.alone
    }
    return chosen | {RANDOM: every}


def worth(transfers: MeasuredTransfers, donors: Donors) -> Worth:
    """Return the effect of a choice, as an expectation over several donors."""
    alone, merged = transfers.alone, transfers.merged
    after = {receiver: [merged[donor, receiver] for donor in some] for receiver, some in donors.items()}
    return Worth(
        speedup=mean(mean(alone[receiver] / each for each in some) for receiver, some in after.items()),
        saved_pct=100.0 * (1.0 - sum(mean(some) for some in after.values()) / sum(alone[r] for r in after)),
        hurt_pct=100.0 * mean(mean(each > alone[r] for each in some) for r, some in after.items()),
    )


def transferability(transfers: MeasuredTransfers, extent: TransferExtent) -> Result:
    """Return the figures and tables of the measured transfers."""
    choices = donors_by_choice(transfers)
    worths = {choice: worth(transfers, donors) for choice, donors in choices.items()}
    rival = max((metric for metric in METRICS if metric != "task2vec"), key=lambda of: worths[of].speedup)
    ours, best, random = worths["task2vec"], worths[HINDSIGHT], worths[RANDOM]
    trained = (
        f"{len(transfers.merged)} pairs of {len(transfers.alone)} tasks trained, {extent.iterations} "
        "iterations of each alone"
    )
    receivers = len(transfers.alone)
    measurements = (
        Measurement(
            "task2vec_speedup",
            ours.speedup,
            f"{trained}; best donor in hindsight {best.speedup:.2f}, a random one {random.speedup:.2f}",
            receivers,
        ),
        Measurement(
            "task2vec_vs_random",
            ours.speedup / random.speedup,
            f"{trained}; {ours.speedup:.2f} over {random.speedup:.2f}",
            receivers,
        ),
        Measurement(
            "task2vec_vs_best_rival",
            ours.speedup / worths[rival].speedup,
            f"{trained}; {ours.speedup:.2f} over {worths[rival].speedup:.2f} of {rival}",
            receivers,
        ),
    )
    return Result(measurements, (_table_7(transfers, worths), _pairs(transfers)))


def _table_7(transfers: MeasuredTransfers, worths: Mapping[str, Worth]) -> Table:
    rows: list[tuple[Value, ...]] = []
    for choice, found in worths.items():
        scores = transfers.scores.get(choice)
        times = (None, None) if scores is None else (scores.scoring_s, scores.profiling_s)
        rows.append((choice, "trained here", found.speedup, found.saved_pct, found.hurt_pct, *times))
    rows += [
        (metric, f"{model}, published", speedup, None, None, None, profiling_s)
        for metric, model, speedup, profiling_s in PUBLISHED
    ]
    columns = ("donor_by", "model", "speedup", "saved_pct", "hurt_pct", "scoring_s", "profiling_s")
    return Table("table_7", columns, rows, Bars("donor_by", "model", "speedup", None, "speedup by merging"))


def _pairs(transfers: MeasuredTransfers) -> Table:
    rows: list[tuple[Value, ...]] = [
        (
            donor,
            receiver,
            transfers.alone[receiver],
            merged,
            *(transfers.scores[metric].of[donor, receiver] for metric in METRICS),
            transfers.alone[receiver] / merged,
        )
        for (donor, receiver), merged in transfers.merged.items()
    ]
    return Table("transfers", ("donor", "receiver", "alone", "merged", *METRICS, "speedup"), rows)
