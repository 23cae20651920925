"""Both estimators on merges of real runs, and the training that makes them."""

import pytest

from bench.goals import GATES
from bench.merging.forecast_gains import SPLITS
from bench.merging.train_pairs import BACKBONES, RECORDS
from bench.merging.trained import read_trained
from bench.merging.trained_estimates import TrainedTasks, compare_on_trained


def test_file_has_every_pair():
    trained = read_trained()
    assert [each.model for each in trained.backbones] == list(BACKBONES)
    pairs = {(a, b) for a in RECORDS for b in RECORDS if a != b}
    for backbone in trained.backbones:
        assert {task.name: task.samples for task in backbone.tasks} == RECORDS
        for mode in ("temporal", "spatial"):
            found = [(each.donor, each.receiver) for each in backbone.merges if each.mode == mode]
            assert (len(found), set(found)) == (len(pairs), pairs)


def test_gain_and_iterations_are_those_of_curves():
    (one, *_) = read_trained().backbones
    tasks = TrainedTasks(one)
    for merge in tasks.merges:
        candidate = merge.candidate
        target = max(tasks.tasks[candidate.receiver].accuracies)
        trained = tasks.by_pair[candidate.mode, candidate.donor, candidate.receiver]
        assert (1.0 + merge.gain) * target == pytest.approx(max(trained.accuracies))
        assert (merge.epochs is None) == (max(trained.accuracies) < target)


def test_figures_of_both_estimators_have_gates():
    found = compare_on_trained(read_trained())
    names = {one.name for one in found.measurements}
    whats = {f"{split}_{what}" for split in SPLITS for what in ("sign", "mape", "iterations")}
    assert names == {
        f"estimator_{name}_trained_{what}_pct"
        for name in ("learned", "published")
        for what in (*whats, "alone_iterations")
    }
    gates = (GATES / "merging.yaml").read_text()
    assert all(f"  {name}:" in gates for name in names)
