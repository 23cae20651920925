"""Choices of donors by score: from given counts, and from real training."""

import pytest

from bench.merging.transferability import (
    best_donors,
    donors_by_choice,
    transferability,
    worth,
)
from bench.merging.transfers import (
    METRICS,
    MOST_OF_ALONE,
    MeasuredTransfers,
    PairScores,
    TransferExtent,
    measure_transfers,
)

MERGED = {
    ("b", "a"): 5,
    ("c", "a"): 20,
    ("a", "b"): 5,
    ("c", "b"): 10,
    ("a", "c"): 40,
    ("b", "c"): 25,
}
RIGHT = {pair: -float(iterations) for pair, iterations in MERGED.items()}
WRONG = {pair: float(iterations) for pair, iterations in MERGED.items()}
EQUAL = dict.fromkeys(MERGED, 0.5)


def transfers(**scores: dict[tuple[str, str], float]) -> MeasuredTransfers:
    """Return transfers of three tasks: `a` helps `b` and `b` helps `a`, and both hurt `c`."""
    return MeasuredTransfers(
        alone={"a": 10, "b": 10, "c": 20},
        merged=MERGED,
        scores={metric: PairScores(of, scoring_s=1.0, profiling_s=1.0) for metric, of in scores.items()},
    )


def test_donor_has_the_largest_score():
    assert best_donors(RIGHT) == {"a": "b", "b": "a", "c": "b"}
    assert best_donors(WRONG) == {"a": "c", "b": "c", "c": "a"}


def test_equal_scores_choose_the_first_name():
    assert best_donors(EQUAL) == best_donors(dict(reversed(EQUAL.items()))) == {"a": "b", "b": "a", "c": "a"}


def test_donors_that_hurt_count_in_full():
    found = worth(transfers(), {"a": ["c"], "b": ["c"], "c": ["a"]})
    assert found.speedup == pytest.approx((10 / 20 + 10 / 10 + 20 / 40) / 3)
    assert found.saved_pct == pytest.approx(100 * (1 - 70 / 40))
    assert found.hurt_pct == pytest.approx(100 * 2 / 3)


def test_random_donor_is_the_mean_of_all():
    choices = donors_by_choice(transfers())
    assert choices["random"] == {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}
    found = worth(transfers(), choices["random"])
    assert found.speedup == pytest.approx(sum([2, 0.5, 2, 1, 0.5, 0.8]) / 6)
    assert found.saved_pct == pytest.approx(100 * (1 - (12.5 + 7.5 + 32.5) / 40))
    assert found.hurt_pct == pytest.approx(100 * 3 / 6)


def test_no_choice_exceeds_the_best_in_hindsight():
    seen = transfers(task2vec=RIGHT, task2feat=EQUAL, leep=WRONG)
    worths = {choice: worth(seen, donors).speedup for choice, donors in donors_by_choice(seen).items()}
    assert worths["task2vec"] == worths["best in hindsight"] == max(worths.values())
    assert worths["leep"] == min(worths.values())


TINY = TransferExtent(
    tasks=("code pages", "more code pages", "asyncio"),
    records=24,
    validation_records=6,
    iterations=4,
    interval=2,
    scored_records=4,
    batch_size=2,
    sequence_length=32,
)


@pytest.fixture(scope="module")
def trained() -> MeasuredTransfers:
    return measure_transfers(TINY, seed=3)


@pytest.mark.long
def test_every_pair_is_trained_and_scored(trained: MeasuredTransfers):
    pairs = {(a, b) for a in TINY.tasks for b in TINY.tasks if a != b}
    assert set(trained.alone) == set(TINY.tasks)
    assert set(trained.merged) == pairs
    assert set(trained.alone.values()) <= {2, 4}
    assert set(trained.merged.values()) <= set(range(2, MOST_OF_ALONE * 4 + 1, 2))
    assert set(trained.scores) == set(METRICS)
    for scores in trained.scores.values():
        assert set(scores.of) == pairs
        assert 0 < scores.scoring_s <= scores.profiling_s


@pytest.mark.long
def test_leep_alone_needs_a_trained_donor(trained: MeasuredTransfers):
    needing = [name for name, scores in trained.scores.items() if scores.profiling_s > scores.scoring_s]
    assert needing == ["leep"]


@pytest.mark.long
def test_seed_determines_transfers_and_scores(trained: MeasuredTransfers):
    again, other = measure_transfers(TINY, seed=3), measure_transfers(TINY, seed=4)
    assert (again.alone, again.merged) == (trained.alone, trained.merged)
    for metric in METRICS:
        assert again.scores[metric].of == trained.scores[metric].of
        assert other.scores[metric].of != trained.scores[metric].of


@pytest.mark.long
def test_table_has_every_choice_of_donors(trained: MeasuredTransfers):
    result = transferability(trained, TINY)
    table_7, pairs = result.tables
    own = {row["donor_by"]: row for row in table_7.rows}
    assert list(own) == [*METRICS, "best in hindsight", "random"]
    assert all(own["best in hindsight"]["speedup"] >= row["speedup"] for row in own.values())
    assert len(pairs.rows) == 6
    figures = {measured.name: measured.value for measured in result.measurements}
    assert figures["task2vec_speedup"] == own["task2vec"]["speedup"]
    assert figures["task2vec_vs_random"] == pytest.approx(
        own["task2vec"]["speedup"] / own["random"]["speedup"]
    )
