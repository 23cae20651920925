"""Output of `explain` for fine-tuning jobs: their profiles, their merges, and the results."""

import pytest

from schemas.lora import Dataset
from tests.infra.simulation.merging.small import ShortTruth, SmallTruth, merging_cell, simulated, submit
from tests.infra.views.merging.logs import JOBS, lines_about, merged_run, watched_lines

MERGED = "merged, one -> two, with 1 GPU on n0 x1: the second starts from the weights that the first leaves"


def test_job_shows_target_and_profile() -> None:
    said = lines_about(merged_run(), "zero")
    assert said[:5] == [
        "ann queues it, without a bid or a deadline",
        "an adapter of rank 8 of tiny, on 800 samples of a.jsonl, batch size 8, learning rate 0.001",
        "done at an accuracy of 0.6 on a.validation.jsonl, or after 1000 iterations",
        "admitted to the queue",
        "other jobs that wait: 0; it is profiled first",
    ]
    for line in (
        "n0 profiles it on 1 GPU: 8 iterations or 60 s at most",
        "n0 has profiled it: loss 2.0000 to 0.7800 in 8 iterations",
        "a step takes 1 s with 1 GPU, micro-batch 8 x 1",
        "accuracy 0.1000 untrained; data loader 0.5 s, 800 records; 2 GiB; embedding of 3 values",
        "profiled; not yet estimated, assumed to need 1000 iterations",
        "estimated: 1000 iterations until its target",
        "a step takes 1 s with the fewest GPUs, its data loader 0.5 s, and it needs 2 GiB besides the base "
        "model",
    ):
        assert line in said, line


def test_profile_of_epoch_shows_its_accuracy() -> None:
    run = simulated(
        merging_cell(), [(1.0, submit("short", dataset=Dataset(path="a.jsonl", samples=40)))], SmallTruth()
    )
    (line,) = (line for line in lines_about(run, "short") if line.startswith("accuracy 0.1000 untrained"))
    assert line.startswith("accuracy 0.1000 untrained, 0.1000 after an epoch; data loader 0.5 s, 40 records;")


def test_merge_shows_forecast_result_and_gain() -> None:
    said = lines_about(merged_run(), "two")
    merged = said.index(MERGED)
    begun = said.index("begins with 1 GPU on n0 x1, from the weights that its donor has left")
    over = said.index("the merge one -> two is over for two: saved 5 min of one GPU")
    assert merged < begun < over
    forecast = next(line for line in said[merged:begun] if line.startswith("forecast for two: a gain of "))
    assert forecast.endswith(" iterations instead of 600"), "as job zero needed, which ran alone"
    # Two jobs ran alone, so that it is known what the receiver would have reached and taken.
    assert said[over + 1].endswith(" 0.0% forecast, 0.0% measured")
    assert said[over + 2].endswith(" forecast, 300 taken, 600 alone")


def test_donor_shows_receiver_and_gain() -> None:
    said = lines_about(merged_run(), "one")
    assert said.index(MERGED) < said.index("the merge one -> two is over for two: saved 5 min of one GPU")


def test_receiver_is_measured_with_donor_weights() -> None:
    said = lines_about(merged_run(), "two")
    assert "n0 measures accuracy 0.1300, with the weights that one has after 1 epoch" in said
    assert "n0 measures accuracy 0.4000 after 1 epoch, 100 iterations, merged with one" in said


def test_undone_merge_is_shown_to_both_with_reason() -> None:
    run = merged_run(helps=0)
    undone = (
        "the merge one -> two is undone, both are to go on alone: after 2 epochs the accuracy of job two is "
        "0.1 at best, and it was 0.1 before"
    )
    said = lines_about(run, "two")
    verdict = said.index("the merge one -> two was no gain for two: saved 0 s of one GPU")
    assert said.index(undone) < verdict
    assert said[verdict + 2].endswith(" forecast, 0 taken, 600 alone")
    assert undone in lines_about(run, "one")
    assert f"one, two: {undone}" in watched_lines(run)
    assert any(line.startswith("completed on n0") for line in said[verdict:])


def test_half_undone_merge_is_shown_to_one() -> None:
    jobs = [*JOBS[:2], (21.0, submit("two", "b"))]
    truth = ShortTruth({("b", "a"): 3}, short=frozenset("b"))
    run = simulated(merging_cell(modes=("spatial",)), jobs, truth)
    undone = (
        "its merge is undone, it is to restart alone: after all 1000 iterations the accuracy of job two "
        "is 0.55 at best, and its target is 0.6"
    )
    assert undone in lines_about(run, "two")
    assert f"two: {undone}" in watched_lines(run)
    said = lines_about(run, "one")
    assert "the merge two || one is over for one: saved 5 min of one GPU" in said
    assert not any("undone" in line for line in said)


@pytest.mark.parametrize(("job", "other"), [("one", "two"), ("two", "one")])
def test_jointly_trained_jobs_show_each_other(job: str, other: str) -> None:
    said = lines_about(merged_run("spatial"), job)
    assert "merged, one || two, with 1 GPU on n0 x1: both are trained in one run" in said
    assert f"the merge {other} || {job} is over for {job}: saved 5 min of one GPU" in said


def test_merges_of_others_are_not_shown() -> None:
    assert not any("merge" in line for line in lines_about(merged_run(), "zero"))


def test_refused_profile_shows_field_and_unmerged_run() -> None:
    run = simulated(merging_cell(), [(1.0, submit("one"))], SmallTruth(losses=(1.0,) * 8))
    refused = (
        "its profile was refused, so it runs unmerged: losses: the mean of the last third, 1, is not below "
        "that of the first, 1"
    )
    assert refused in lines_about(run, "one")
    assert f"one: {refused}" in watched_lines(run)
    assert any(line.startswith("completed on n0") for line in lines_about(run, "one"))


def test_job_of_known_kind_needs_no_profile() -> None:
    run = simulated(merging_cell(), [(1.0, submit("first")), (2_000.0, submit("second"))])
    said = lines_about(run, "second")
    assert "other jobs that wait: 0; it needs no profile run" in said
    assert "jobs of equal data and hyperparameters have ended: 600 iterations until its target" in said
    assert not any("profiles it" in line for line in said)


def test_unshared_job_is_marked() -> None:
    run = simulated(merging_cell(), [(1.0, submit("one", sharing=False))])
    assert "never merged: it does not share" in lines_about(run, "one")


def test_waiting_job_shows_its_competition() -> None:
    said = [line for line in lines_about(merged_run(), "zero") if line.startswith("competes for")]
    assert said == ["competes for 1 GPU"]


def test_second_waiting_job_shows_count() -> None:
    assert "competes for 1 GPU with 1 other job" in lines_about(merged_run(), "one")


def test_a_job_under_another_scheme_competes_too() -> None:
    cell = merging_cell(scheme="tiresias")
    assert "competes for 1 GPU" in lines_about(simulated(cell, [(1.0, submit("one"))]), "one")


def test_commands_are_shown_by_node() -> None:
    said = lines_about(merged_run(), "two")
    assert "n0 runs it with 1 of 1 GPU: task t2.1, one from iteration 0, two from iteration 0" in said
    assert "n0 ends its part of task t2.1 (undone)" in lines_about(merged_run(helps=0), "two")


def test_job_short_of_target_is_marked() -> None:
    whole = {"accuracy": 0.99, "most_iterations": 200}
    said = lines_about(simulated(merging_cell(), [(1.0, submit("zero", target=whole))]), "zero")
    assert said[-1].startswith("completed on n0: 1600 samples, accuracy 0.")
    assert said[-1].endswith(", below its target of 0.99")
