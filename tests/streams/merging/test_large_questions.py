"""A question to a solver can always be written, however many kinds of jobs there are, and how they differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import MAX_VALUE_BYTES, Decision
from schemas.merging.estimates import (
    MAX_FINISHED,
    MAX_KINDS,
    MAX_OUTCOMES,
    EstimateProblem,
    EstimateSolution,
    FinishedKind,
    KindEstimate,
    KindFacts,
    PairScore,
    PastMerge,
    TransferEstimate,
)
from schemas.merging.problems import (
    MAX_STEP_TIMES,
    MAX_UNITS,
    JobKind,
    MergeProblem,
    MergeSolution,
    RivalJob,
    RivalProblem,
    Share,
    StepTime,
    TransferPair,
    Unit,
)
from schemas.merging.reports import MAX_TRACE, MeasuredStep
from schemas.merging.settings import TRANSFERS_KEPT
from schemas.merging.workload import MAX_GPUS, MAX_ITERATIONS
from schemas.questions import encode_posed
from schemas.solves import SolveRequested
from schemas.topics import INPUT_MAX_MESSAGE_BYTES
from streams.policies.merging import questions
from streams.policies.merging.step_tables import KindSteps, step_tables
from streams.solver.answers import PendingSolve, answer_to
from tests.support.cells import Bench
from tests.support.merging import CELL, submit
from tests.support.merging_script import Script, share
from tests.support.twins import ZONE

OTHER_BYTES = 64 * 1_024
"""Bytes of a record other than its value, with its key and headers."""
LONG = 1234567890.1234567
EPOCHS = 1234567.8901234567
RATIO = 0.12345678901234567


def measured(gpus: int) -> MeasuredStep:
    """Return step times that fall with each GPU."""
    return MeasuredStep(
        gpus=gpus,
        nodes=-(-gpus // 8),
        micro_batch_size=8,
        accumulation_steps=1,
        step_s=1.0 + 1e-5 * gpus,
        exchange_s=1e-5 * gpus,
    )


def crowded(jobs: int, gpus: int, **policy) -> Script:
    """A zone with jobs of as many kinds, j0 having waited longest; no two have equal step times."""
    speeds = tuple(measured(1 << power) for power in range(gpus.bit_length()))
    script = Script(nodes=gpus // 8, gpus=8, bench=Bench(), speeds=speeds, **policy)
    for number in range(jobs):
        script.send(submit(f"j{number}", data=f"d{number}", accuracy=None, batch_size=2_000 + number))
    zone = script.bench.zone
    for number, job in enumerate(zone._runs.jobs.values()):
        if job.stage == "profiling":
            zone._runs.end_profile(job)
        job.stage, job.waited_s = "ready", float(jobs - number)
    return script


def record_bytes(problem: MergeProblem | RivalProblem | EstimateProblem) -> int:
    request = SolveRequested.of(ZONE, "plan-1", 2.0, problem)
    return len(encode_posed(Decision("c-1-0", CELL, "e1", 1.0, request, "0" * 64), request))


def sizes(problem: MergeProblem | RivalProblem) -> list[int]:
    """With how many numbers of GPUs each job is asked about, in order."""
    if isinstance(problem, RivalProblem):
        return [len(problem.step_tables[job.step_table]) for job in problem.jobs]
    return [len(problem.steps_of(unit.kind)) for unit in problem.units]


def test_kinds_of_equal_step_times_share_a_table():
    script = Script()
    script.ready("a", "b", "c")
    script.ready("d", batch_size=16)
    problem = script.ask().problem
    assert len(problem.kinds) == 4
    assert [kind.step_table for kind in problem.kinds] == [0, 0, 0, 1]
    assert problem.kinds_restricted == problem.jobs_left_out == 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["ymir", pytest.param("optimus", marks=pytest.mark.long)])
def test_longest_waiting_jobs_keep_whole_tables(scheme):
    script = crowded(1_500, 120, scheme=scheme)
    problem = script.ask().problem
    found = sizes(problem)
    assert min(found[:1_200]) > 20
    assert set(found[-100:]) == {1}
    assert problem.kinds_restricted == found.count(1)
    assert len(found) == 1_500, "nobody is left out"
    assert sum(map(len, problem.step_tables)) <= MAX_STEP_TIMES


@pytest.mark.long
def test_running_job_keeps_its_gpu_count():
    script = crowded(1_500, 120)
    script.plan(share("j1499", gpus=12), share("j1498", gpus=4))
    problem = script.ask().problem
    by_job = {unit.job_ids[0]: problem.steps_of(unit.kind) for unit in problem.units}
    assert [step.gpus for step in by_job["j1499"]] == [1, 12]
    assert [step.gpus for step in by_job["j1498"]] == [1, 4]


def test_latest_jobs_wait_beyond_question_limit(monkeypatch):
    monkeypatch.setattr(questions, "MOST_ASKED", 3)
    script = crowded(6, 8)
    script.plan(share("j5"))
    problem = script.ask().problem
    assert [unit.job_ids[0] for unit in problem.units] == ["j0", "j1", "j5"], "one that runs is among them"
    assert problem.jobs_left_out == 3


def test_gpus_of_job_are_limited_per_job():
    script = Script(nodes=150, gpus=8)
    script.send(submit("a", data="a", accuracy=None))
    for _ in range(3):
        script.send(script.failed("a"))
        script.tick(script.time_s + 1.0)
    (steps,) = script.ask().problem.step_tables
    assert steps[-1].gpus == MAX_GPUS, "nothing is known of its speed"


@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.integers(0, 2),
            st.floats(0, 100),
            st.sets(st.integers(1, 6), max_size=2),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 30),
)
def test_tables_fit_with_fewest_and_present_gpus(drawn, more):
    kinds = [
        KindSteps(
            tuple(StepTime(gpus=gpus, step_s=(1.0 + speed) / gpus) for gpus in range(1, count + 1)),
            waited_s,
            gpus_now,
        )
        for count, speed, waited_s, gpus_now in drawn
    ]
    room = sum(len(kind.restricted) for kind in kinds) + more
    told = step_tables(kinds, room)
    assert sum(map(len, told.tables)) <= room
    assert len(set(told.tables)) == len(told.tables)
    chosen = [told.tables[table] for table in told.of_kinds]
    for kind, steps in zip(kinds, chosen, strict=True):
        assert steps in (kind.steps, kind.restricted)
    less = [kind for kind, steps in zip(kinds, chosen, strict=True) if steps != kind.steps]
    assert told.restricted == len(less)
    if sum(map(len, {kind.steps for kind in kinds})) <= room:
        assert not less
    first = max(kinds, key=lambda kind: kind.waited_s)
    if more >= len(first.steps):
        assert chosen[kinds.index(first)] == first.steps


def longest(number: int) -> str:
    return f"{number:0128d}"


def restricted_tables(count: int) -> tuple[tuple[StepTime, ...], ...]:
    """The most there may be, of so many tables."""
    (each, more) = divmod(MAX_STEP_TIMES, count)
    return tuple(
        tuple(StepTime(gpus=MAX_GPUS - size, step_s=RATIO * 10 + n) for size in range(each + (n < more)))
        for n in range(count)
    )


def test_the_largest_question_about_merges_is_a_record():
    count = MAX_UNITS
    problem = MergeProblem(
        gpus=100_000,
        interval_s=LONG,
        switch_s=RATIO,
        step_tables=restricted_tables(count),
        kinds=tuple(
            JobKind(step_table=n, samples_per_step=4_096, dataset_samples=10**12) for n in range(count)
        ),
        units=tuple(
            Unit(
                job_ids=(longest(n),),
                kind=n,
                iterations=MAX_ITERATIONS * (1 - RATIO),
                waited_s=LONG,
                part="donor",
                gpus=MAX_GPUS,
                follower=longest(n) if n % 2 else None,  # which is a job that is asked about too
            )
            for n in range(count)
        ),
        transfers=(
            TransferPair(
                mode="temporal", donor=count - 1, receiver=count - 1, receiver_ratio=RATIO, donor_ratio=RATIO
            ),
        )
        * TRANSFERS_KEPT,
    )
    assert record_bytes(problem) + OTHER_BYTES < INPUT_MAX_MESSAGE_BYTES


def test_largest_question_without_merging_fits_record():
    problem = RivalProblem(
        scheme="tiresias",
        interval_s=LONG,
        time_s=LONG,
        gpus=100_000,
        step_tables=restricted_tables(MAX_UNITS),
        jobs=tuple(
            RivalJob(
                job_id=longest(n),
                submitted_s=LONG,
                waited_s=LONG,
                running_s=LONG,
                attained_gpu_s=LONG,
                asked_gpus=MAX_GPUS,
                step_table=n,
                iterations=MAX_ITERATIONS * (1 - RATIO),
                iterations_left=MAX_ITERATIONS * (1 - RATIO),
                gpus=MAX_GPUS,
                held_s=LONG,
                restarts=100_000,
            )
            for n in range(MAX_UNITS)
        ),
    )
    assert record_bytes(problem) + OTHER_BYTES < INPUT_MAX_MESSAGE_BYTES


@pytest.mark.parametrize("field", ["steps", "table"])
def test_inconsistent_question_is_refused(field):
    step = StepTime(gpus=1, step_s=1.0)
    tables = ((step,) * 1_000,) * 41 if field == "steps" else ((step,),)
    with pytest.raises(ValueError, match="step_tables: have 41000" if field == "steps" else "no table 1"):
        MergeProblem(
            gpus=1,
            interval_s=1.0,
            switch_s=0.0,
            step_tables=tables,
            kinds=(JobKind(step_table=int(field == "table"), samples_per_step=1, dataset_samples=1),),
            units=(Unit(job_ids=("a",), kind=0, iterations=1.0, waited_s=0.0, part="none", gpus=0),),
        )


def test_largest_estimate_question_and_answer_fit():
    name = "\1" * 64
    kind = KindFacts(
        task=name,
        dataset_samples=10**12,
        losses=(RATIO,) * MAX_TRACE,
        iterations_per_epoch=10**12,
        most_iterations=MAX_ITERATIONS,
        accuracy_before=RATIO,
        target_accuracy=RATIO,
        finished_iterations=LONG,
        finished_accuracy=RATIO,
    )
    merge = PastMerge(
        mode="temporal",
        donor=name,
        donor_samples=10**12,
        receiver=name,
        receiver_samples=10**12,
        score=-RATIO,
        gain=-RATIO,
        target=RATIO,
        best=RATIO,
        epochs=EPOCHS,
        own_epochs=EPOCHS,
    )
    pairs = MAX_KINDS**2
    problem = EstimateProblem(
        modes=("temporal", "spatial"),
        kinds=(kind,) * MAX_KINDS,
        finished=(FinishedKind(task=name, share=RATIO),) * MAX_FINISHED,
        scores=(PairScore(donor=31, receiver=31, score=-RATIO),) * pairs,
        outcomes=(merge,) * MAX_OUTCOMES,
    )
    assert record_bytes(problem) + OTHER_BYTES < INPUT_MAX_MESSAGE_BYTES
    forecast = TransferEstimate(
        mode="temporal",
        donor=31,
        receiver=31,
        receiver_gain=-RATIO,
        receiver_ratio=RATIO,
        donor_gain=-RATIO,
        donor_ratio=RATIO,
    )
    solution = EstimateSolution(
        kinds=(KindEstimate(iterations=MAX_ITERATIONS, fault="flat_loss_curve"),) * MAX_KINDS,
        transfers=(forecast,) * 2 * pairs,
    )
    asked = SolveRequested.of(ZONE, "estimate-1", 1.0, problem)
    assert answer_to(PendingSolve(CELL, asked, problem, "solved-1"), solution, 1.0).solution == solution


def test_oversized_plan_drops_its_end():
    script = Script()
    script.ready("a")
    asked = script.ask()
    shares = tuple(Share(job_ids=(longest(n),), mode="normal", gpus=1) for n in range(9_000))
    plan = MergeSolution(shares=shares, objective=1.0, bound=0.5, search="limited")
    answer = answer_to(PendingSolve(CELL, asked, asked.problem, "solved-1"), plan, 1.0)
    kept = answer.solution.shares
    assert 0.9 * MAX_VALUE_BYTES < len(answer.model_dump_json()) <= MAX_VALUE_BYTES
    assert kept == shares[: len(kept)]
    assert (answer.solution.objective, answer.solution.bound, answer.solution.search) == (None, None, None)
