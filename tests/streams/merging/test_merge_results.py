"""When a merge is undone: while the donor trains, and by a job's own first epochs."""

import pytest

from schemas.lora import Dataset
from schemas.merging.reports import TaskEvaluated
from schemas.merging.workload import MergingTerms, TrainingTarget, TuningWorkload
from streams.cell.jobs import Job
from streams.cell.states import from_state, state_of
from streams.policies.merging.kind_of_jobs import KindOfJobs
from streams.policies.merging.merge_results import fault_of_merge, merge_result, note_evaluation
from streams.policies.merging.tuning_job import JobMerge, TuningJob
from streams.policies.merging.tuning_task import TuningTask

WORKLOAD = TuningWorkload(
    model="base",
    dataset=Dataset(path="a.jsonl", samples=800),
    validation_path="a.validation.jsonl",
    target=TrainingTarget(accuracy=0.9, most_iterations=1_000),
)

WITHOUT_TARGET = WORKLOAD.model_copy(update={"target": TrainingTarget(most_iterations=300)})


def job(merge: JobMerge | None = None) -> TuningJob:
    return TuningJob(
        Job("j", "u", "z", WORKLOAD, MergingTerms()), 0, kind="kind", submitted_s=0.0, merge=merge
    )


def merged(mode="temporal", is_donor=False, before: float | None = None) -> TuningJob:
    return job(JobMerge(mode, "other", "task", 800, is_donor, 0.0, 0.1, 100, 300, before))


def task(*job_ids: str, mode="temporal") -> TuningTask:
    return TuningTask("t", mode, job_ids, {"n0": 1}, watched_epochs=2)


def evaluated(epochs: float, accuracy: float, phase="own") -> TaskEvaluated:
    return TaskEvaluated(
        cell="c",
        node="n0",
        run_id="t.1/j",
        job_id="j",
        samples_done=0,
        iterations=int(100 * epochs),
        epochs=epochs,
        loss=None,
        accuracy=accuracy,
        phase=phase,
        partner="other",
        step=None,
    )


def faults_found(one: TuningJob, kind: KindOfJobs, of: TuningTask, *reports: TaskEvaluated) -> list[bool]:
    found = []
    for report in reports:
        compares = note_evaluation(one, kind, of, report)
        found.append(fault_of_merge(one, kind, of, report, compares) is not None)
    return found


@pytest.fixture
def kind() -> KindOfJobs:
    """Return a kind of jobs that alone have an accuracy of 0.6 after two epochs."""
    known = KindOfJobs.of(WORKLOAD)
    faults_found(job(), known, task("j", mode="normal"), *(evaluated(n, 0.3 * n) for n in (1, 2, 3)))
    return known


def test_jobs_alone_give_usual_accuracy_after_watched_epochs(kind):
    assert (kind.watched, kind.watched_accuracy) == (1, pytest.approx(0.6))
    faults_found(job(), kind, task("j", mode="normal"), evaluated(2, 0.8))
    assert (kind.watched, kind.watched_accuracy) == (2, pytest.approx(0.7))
    assert from_state(KindOfJobs, state_of(kind)) == kind


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_job_without_gain_after_watched_epochs_is_undone(kind, mode):
    reports = evaluated(1, 0.1), evaluated(2, 0.6)
    assert faults_found(merged(mode), kind, task("j", mode=mode), *reports) == [False, True]
    assert kind.watched == 1, "merged jobs say nothing of those alone"


def test_job_with_gain_continues_whatever_follows(kind):
    reports = evaluated(1, 0.1), evaluated(2, 0.61), evaluated(3, 0.5), evaluated(4, 0.5)
    assert faults_found(merged(), kind, task("j"), *reports) == [False] * 4


def test_without_comparison_nothing_is_undone():
    unknown = KindOfJobs.of(WORKLOAD)
    assert faults_found(merged(), unknown, task("j"), evaluated(2, 0.0)) == [False]


def test_receiver_of_short_donor_is_evaluated_alone():
    unknown = KindOfJobs.of(WORKLOAD)
    reports = evaluated(0.5, 0.1, phase="donor"), evaluated(1, 0.15), evaluated(2, 0.2), evaluated(3, 0.1)
    assert faults_found(merged(before=0.2), unknown, task("j"), *reports) == [False, False, True, False]
    assert faults_found(merged(before=0.1), unknown, task("j"), *reports) == [False] * 4


def test_a_donor_is_as_if_it_were_alone(kind):
    assert faults_found(merged(is_donor=True), kind, task("j", "other"), evaluated(2, 0.2)) == [False]
    assert kind.watched == 2


def test_a_receiver_is_evaluated_with_its_donors_weights(kind):
    reports = [evaluated(n, 0.2, phase="donor") for n in (1, 2)]
    assert faults_found(merged(before=0.2), kind, task("other", "j"), *reports) == [False, True]
    assert faults_found(merged(before=0.1), kind, task("other", "j"), *reports) == [False, False]


@pytest.mark.parametrize(
    ("accuracies", "needed", "saved_s"), [((0.5, 0.7, 0.8), 200, 100.0), ((0.5, 0.6, 0.65), None, 0.0)]
)
def test_merge_without_target_gains_by_worth(accuracies, needed, saved_s):
    """Jobs of its kind are at 0.7 after their 300 iterations: the merged one is so after 200, or never."""
    one, kind = merged(), KindOfJobs.of(WITHOUT_TARGET)
    one.workload = WITHOUT_TARGET
    kind.note_finished(300, 0.7)
    for epoch, accuracy in enumerate(accuracies, 1):
        note_evaluation(one, kind, task("j"), evaluated(epoch, accuracy))
    one.job.samples_done = 300 * WITHOUT_TARGET.hyperparameters.batch_size
    assert one.merge is not None
    decision, past = merge_result("z", one, one.merge, kind, 1.0, "finished", 0.7)
    assert decision.saved_s == saved_s
    assert decision.gain == pytest.approx(max(accuracies) / 0.7 - 1)
    assert past.target == 0.7
    assert past.epochs == (None if needed is None else needed / kind.iterations_per_epoch)


def test_gain_without_accuracy_alone_is_unknown(kind):
    one = merged()
    faults_found(one, kind, task("j"), evaluated(2, 0.6))
    kind.note_finished(1_000, 0.9)
    assert one.merge is not None
    decision, past = merge_result("z", one, one.merge, kind, 1.0, "undone", None)
    assert (decision.gain, past.gain) == (None, None)
