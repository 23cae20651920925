"""Table 7: speedup by each score of transferability as the choice of donors, measured by training.

For each task, the donor with the best score is used, even if it delays the task: here, no zone undoes the
merge. Every pair is trained, so that the best donor in hindsight and a random donor are the ends of the
scale. No score uses the outcome of a pair or validation data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

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

PUBLISHED: Mapping[str, tuple[str, str]] = {
    "task2vec": ("1.30, 1.57, 1.72", "24.63, 75.64, 102.85"),
    "task2feat": ("1.26, 1.12, 0.99", "5.87, 923.46, 838.03"),
    "leep": ("0.85, 0.74", "30.50, 202.46"),
}
"""Table 7: speedup of the job completion time, and largest profiling overhead in seconds, by metric, each for
ViT-Base, RoBERTa-Base and Vicuna-7B."""
HINDSIGHT, RANDOM = "best in hindsight", "random"

Donors = Mapping[str, Sequence[str]]
"""Possible donors by receiver, with equal probabilities."""


@dataclass(frozen=True)
class DonorGain:
    """Effect of a choice of donors."""

    speedup: float
    """Iterations alone over those after the donor, as a mean over receivers."""
    saved_pct: float
    """Saved part of the iterations that all receivers need alone. It is negative if the choice costs
    iterations."""
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


def worth(transfers: MeasuredTransfers, donors: Donors) -> DonorGain:
    """Return the effect of a choice, as an expectation over several donors."""
    alone, merged = transfers.alone, transfers.merged
    after = {receiver: [merged[donor, receiver] for donor in some] for receiver, some in donors.items()}
    return DonorGain(
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
    figures = (
        (
            "speedup",
            ours.speedup,
            f"best donor in hindsight {best.speedup:.2f}, a random one {random.speedup:.2f}",
        ),
        ("vs_random", ours.speedup / random.speedup, f"{ours.speedup:.2f} over {random.speedup:.2f}"),
        (
            "vs_best_rival",
            ours.speedup / worths[rival].speedup,
            f"{ours.speedup:.2f} over {worths[rival].speedup:.2f} of {rival}",
        ),
    )
    measurements = tuple(
        Measurement(f"task2vec_{name}", value, f"{trained}; {note}", len(transfers.alone))
        for name, value, note in figures
    )
    return Result(measurements, (_table_7(transfers, worths), _pairs(transfers)))


def _table_7(transfers: MeasuredTransfers, worths: Mapping[str, DonorGain]) -> Table:
    rows: list[dict[str, Value]] = []
    for choice, found in worths.items():
        scores = transfers.scores.get(choice)
        published_speedup, published_s = PUBLISHED.get(choice, (None, None))
        rows.append(
            {
                "donor_by": choice,
                "speedup": found.speedup,
                "saved_pct": found.saved_pct,
                "hurt_pct": found.hurt_pct,
                "scoring_s": None if scores is None else scores.scoring_s,
                "profiling_s": None if scores is None else scores.profiling_s,
                "published_speedup": published_speedup,
                "published_profiling_s": published_s,
            }
        )
    return Table("table_7", rows)


def _pairs(transfers: MeasuredTransfers) -> Table:
    rows: list[dict[str, Value]] = [
        {
            "donor": donor,
            "receiver": receiver,
            "alone": transfers.alone[receiver],
            "merged": merged,
            **{metric: transfers.scores[metric].of[donor, receiver] for metric in METRICS},
            "speedup": transfers.alone[receiver] / merged,
        }
        for (donor, receiver), merged in transfers.merged.items()
    ]
    return Table("transfers", rows)
