"""Both estimators on merges that neither has seen."""

from types import SimpleNamespace

import pytest

from bench.merging.estimates import Backbone, KnownMerge, KnownTask
from bench.merging.forecast_gains import SPLITS, compare_estimators, published_gains
from solvers.merging.pairs import Candidate, GainOutcome

TASKS = ("a", "b", "c")


def merge(donor: str, receiver: str, mode: str, gain: float) -> KnownMerge:
    return KnownMerge(Candidate(donor, receiver, mode, 1_000, 1_000, receiver_target=0.8), gain, 2, 3)


def backbone(prefix: str, gain: float) -> Backbone:
    names = [f"{prefix}{name}" for name in TASKS]
    merges = [merge(a, b, "temporal", gain) for a in names for b in names if a != b]
    tasks = {name: KnownTask(name, 1_000, 8, 0.8, None, 3) for name in names}
    return Backbone(SimpleNamespace(model=prefix.strip()), {}, tasks, tuple(merges))


BACKBONES = [backbone("one ", 0.1), backbone("two ", -0.1)]


@pytest.mark.parametrize(
    ("split", "same"),
    [
        ("pair", lambda one, other: one.tasks == other.tasks),
        ("receiver", lambda one, other: one.candidate.receiver == other.candidate.receiver),
        ("backbone", lambda one, other: one.gain == other.gain),
    ],
)
def test_no_split_shows_what_it_asks(split, same):
    questions = list(SPLITS[split](BACKBONES))
    assert questions
    for seen, asked in questions:
        assert seen
        assert not any(same(one, other) for one in seen for other in asked)


def test_figures_are_of_both_estimators():
    found = {one.name: one.value for one in compare_estimators(BACKBONES).measurements}
    assert len(found) == 12
    for name in ("learned", "published"):
        assert found[f"estimator_{name}_receiver_sign_pct"] == 100.0
        assert found[f"estimator_{name}_backbone_sign_pct"] == 0.0, "the others show the contrary"


def test_rows_are_of_each_backbone_and_of_all():
    rows = compare_estimators(BACKBONES).tables[0].rows
    assert len(rows) == len(SPLITS) * 2 * 3
    of = {(row["estimator"], row["unseen"], row["model"]): row for row in rows}
    one, two, every = (of["learned", "receiver", model] for model in ("one", "two", "all"))
    assert (one["pairs"], two["pairs"], every["pairs"]) == (6, 6, 12)
    assert one["sign_pct"] == two["sign_pct"] == 100.0


def test_epochs_of_receivers_are_compared_with_those_alone():
    rows = compare_estimators(BACKBONES).tables[0].rows
    (row,) = (
        each
        for each in rows
        if (each["estimator"], each["unseen"], each["model"]) == ("learned", "receiver", "all")
    )
    # Each receiver needed two epochs in place of three, in the merges seen and in those asked about.
    assert row["receivers"] == 12
    assert row["epochs_error_as_alone_pct"] == pytest.approx(100 / 3)
    assert row["epochs_error_pct"] < 10
    (published,) = (
        each
        for each in rows
        if (each["estimator"], each["unseen"], each["model"]) == ("published", "receiver", "all")
    )
    assert "epochs_error_pct" not in published


def test_line_without_scores_is_the_mean():
    seen = [GainOutcome(merge("a", "b", "temporal", 0).candidate, gain) for gain in (0.1, 0.3)]
    asked = [merge("c", "b", "temporal", 0).candidate, merge("c", "b", "spatial", 0).candidate]
    assert published_gains(seen, asked) == pytest.approx([0.2, 0.0])
