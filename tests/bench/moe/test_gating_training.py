"""Models trained to one loss: their times, and the table."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.goals import goals
from bench.moe.gating_training import (
    ADAPTIVE,
    ADAPTIVE_ON_ALL,
    DENSE,
    TOP_1,
    TOP_2,
    TrainingExtent,
    gating_training,
    steps_ratio,
    time_ratio,
    train_all,
    train_to_one_loss,
)
from bench.moe.tasks import ModelSize, generation, library_sentences, reference, sentiment
from bench.moe.trained import ModelRun, Training

NOWHERE = Path("no-such-folder")
SIZE = ModelSize(layers=2, hidden=16, heads=2, experts=4, vocabulary=200, length=16)
TINY = TrainingExtent(
    sentiment=SIZE,
    generation=replace(SIZE, vocabulary=128),
    samples=(60, 60),
    batch_sizes=(8, 8),
    evaluations=4,
    interval=2,
    seeds=2,
)


def run_of(scheme, losses, seconds_each=1.0) -> ModelRun:
    run = ModelRun(scheme, layers=2)
    run.losses = losses
    run.steps = [10 * (place + 1) for place in range(len(losses))]
    run.times_s = [seconds_each * (place + 1) for place in range(len(losses))]
    return run


def test_time_to_a_loss_is_interpolated():
    run = run_of(TOP_2, [6.0, 5.0, 3.0, 1.0, 2.0])
    assert run.time_to(5.0) == 2.0
    assert run.time_to(4.0) == 2.5
    assert run.steps_to(2.0) == 35.0
    assert run.time_to(0.5) == math.inf
    assert (run.reaches(1.0), run.reaches(0.5)) == (True, False)


def test_time_is_steps_times_cost_of_a_step():
    runs = {TOP_2: run_of(TOP_2, [4.0, 4.0, 4.0, 1.0]), ADAPTIVE: run_of(ADAPTIVE, [4.0] * 4 + [1.0], 0.5)}
    assert time_ratio(runs, TOP_2) == 1.0
    assert time_ratio(runs, ADAPTIVE) == pytest.approx(0.5 * 5 / 4)


def test_ratio_is_mean_over_top_2_last_third():
    top_2, adaptive = [9.0, 8.0, 7.0, 6.0, 4.0, 2.0], [9.0, 9.0, 9.0, 9.0, 4.0, 4.0, 4.0, 4.0, 2.0]
    runs = {TOP_2: run_of(TOP_2, top_2), ADAPTIVE: run_of(ADAPTIVE, adaptive)}
    assert steps_ratio(runs, ADAPTIVE) == pytest.approx((5 / 5 + 9 / 6) / 2)


def test_scheme_without_the_loss_has_no_time():
    runs = {TOP_2: run_of(TOP_2, [4.0, 3.0]), TOP_1: run_of(TOP_1, [4.0, 4.0, 4.0])}
    assert math.isnan(time_ratio(runs, TOP_1))


@pytest.mark.parametrize("make", [sentiment, generation])
def test_seed_determines_tasks_and_their_split(make):
    folder = (NOWHERE,) if make is sentiment else ()
    task, again, other = (make(SIZE, 60, 8, *folder, seed) for seed in (1, 1, 2))
    assert (len(task.training), len(task.held_out)) == (54, 6)
    assert torch.equal(task.training.tokens, again.training.tokens)
    assert not torch.equal(task.training.tokens, other.training.tokens)
    rows = {tuple(row) for row in task.training.tokens.tolist()}
    assert not rows & {tuple(row) for row in task.held_out.tokens.tolist()}
    assert int(task.training.tokens.max()) < task.size.vocabulary


def test_text_is_of_the_python_installation():
    sentences = library_sentences()
    assert {label for _, label in sentences} == {0, 1}
    assert sum(label for _, label in sentences) * 2 == len(sentences) > 2_000
    assert len(reference()) > 300_000


def test_seed_determines_a_training():
    task = generation(SIZE, 60, 8, 1)
    losses = []
    for _ in range(2):
        training = Training(task, ADAPTIVE, seed=1)
        training.advance(3)
        training.advance(3)
        losses.append(training.finish().losses)
    assert losses[0] == losses[1]
    assert training.run.steps == [3, 6]
    assert 0 < training.run.times_s[0] < training.run.times_s[1]


def test_schemes_have_their_number_of_experts():
    task = sentiment(SIZE, 60, 8, NOWHERE, 1)
    runs = train_to_one_loss(task, (TOP_2, TOP_1, ADAPTIVE, ADAPTIVE_ON_ALL, DENSE), 1, TINY)
    assert runs[TOP_2].doubles == [1.0, 1.0]
    assert runs[TOP_1].doubles == runs[DENSE].doubles == [0.0, 0.0]
    assert all(0 < doubles < 1 for doubles in runs[ADAPTIVE].doubles)
    assert 0 < runs[ADAPTIVE].first_doubles < runs[ADAPTIVE_ON_ALL].first_doubles < 1
    assert runs[TOP_2].steps == [2, 4, 6, 8]


def test_top_2_adds_one_network_per_layer():
    one, two = (SIZE.flops_per_token(SIZE.vocabulary, experts) for experts in (1, 2))
    assert two - one == SIZE.layers * 2 * 2 * SIZE.hidden * 4 * SIZE.hidden


@pytest.mark.long
def test_table_has_every_scheme_of_both_tasks():
    result = gating_training(train_all(TINY, 1, NOWHERE), TINY)
    (figure,) = result.measurements
    assert figure.name in goals("moe")
    assert figure.runs == 4
    (table,) = result.tables
    assert [row["scheme"] for row in table.rows] == 2 * [
        "dense",
        "top2",
        "top1",
        "adaptive 0.1",
        "adaptive 0.1 all",
    ]
    assert all(row["time"] == 1.0 for row in table.rows if row["scheme"] == "top2")
