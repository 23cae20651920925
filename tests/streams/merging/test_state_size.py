"""State of a zone has a limit, and is counted: a year of operation, thousands of kinds, long names."""

import random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import MAX_TEXT_LENGTH
from schemas.decisions import JobRejected
from schemas.merging.estimates import (
    MAX_KINDS,
    MAX_OUTCOMES,
    EstimateProblem,
    EstimateSolution,
    KindEstimate,
    PastMerge,
    TransferEstimate,
)
from schemas.merging.reports import MAX_EMBEDDING, MAX_TRACE, MeasuredStep, TaskProfiled
from schemas.merging.settings import (
    KINDS_KEPT,
    TRANSFERS_KEPT,
    MergingPolicy,
)
from schemas.merging.workload import MergingTerms, TuningHyperparameters
from streams.cell.jobs import Job
from streams.policies.merging.kind_of_jobs import KindOfJobs, kind_key
from streams.policies.merging.knowledge import Knowledge
from streams.policies.merging.tuning_job import TuningJob
from tests.support.cells import Bench
from tests.support.examples import examples
from tests.support.merging import CELL, merging_cell, merging_zone, submit, workload
from tests.support.merging_script import Script, share
from tests.support.room import limit_room

POLICY = MergingPolicy()
RESERVED = POLICY.state_bytes(merging_zone())
BYTES_PER_LIVE_KIND = 320
"""Bytes of a kind without a profile: counted with each job that is not over."""
LONGEST = 128
STEP = MeasuredStep(gpus=1, nodes=1, micro_batch_size=8, accumulation_steps=1, step_s=1.0, exchange_s=0.0)


def profile(embedding: int = MAX_EMBEDDING, losses: int = MAX_TRACE) -> TaskProfiled:
    """Return the largest possible profile."""
    return TaskProfiled(
        cell=CELL,
        node="n0",
        run_id="1/j",
        job_id="j",
        samples_done=0,
        losses=tuple(3.0 - number / losses for number in range(losses)),
        embedding=tuple(1.0 + number / 7 for number in range(embedding)),
        accuracy=0.1,
        accuracy_after_epoch=0.2,
        steps=(STEP,),
        memory_gib=1.0,
        loader_s=1.0,
        dataset_samples=800,
    )


def size(state: object) -> int:
    return len(msgpack.packb(state))


class Year:
    """Jobs of many kinds come, are profiled, estimated, merged, and go."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.knowledge = Knowledge(POLICY)
        self.live: list[KindOfJobs] = []

    def step(self, kinds: int, most_live: int) -> None:
        work = workload(f"d{self.rng.randrange(kinds)}", accuracy=None)
        kind = self.knowledge.admit(work)
        self.live.append(kind)
        if not kind.is_profiled:
            assert self.knowledge.profiled(kind.key, profile(losses=32, embedding=8)) is None
        if self.rng.random() < 0.02:
            self.estimate()
        while len(self.live) > most_live:
            over = self.live.pop(self.rng.randrange(len(self.live)))
            over.note_finished(self.rng.randrange(1, 1_000), 0.5)
            self.knowledge.leave(over.key)
            self.knowledge.add_outcome(outcome())

    def estimate(self) -> None:
        jobs = [job(kind) for kind in self.live]
        problem = self.knowledge.estimate(jobs)
        assert problem is not None
        assert len(problem.kinds) <= MAX_KINDS
        self.knowledge.keep_estimates(solution(problem))


def job(kind: KindOfJobs) -> TuningJob:
    return TuningJob(Job("j", "u", "z", workload(), MergingTerms()), 0, kind=kind.key, submitted_s=0.0)


def solution(problem: EstimateProblem) -> EstimateSolution:
    kinds = range(len(problem.kinds))
    return EstimateSolution(
        kinds=tuple(KindEstimate(iterations=100) for _ in kinds),
        transfers=tuple(
            TransferEstimate(mode=mode, donor=a, receiver=b, receiver_gain=0.123456789, receiver_ratio=0.5)
            for mode in problem.modes
            for a in kinds
            for b in kinds
        ),
    )


def outcome(name: str = "task") -> PastMerge:
    return PastMerge(
        mode="temporal",
        donor=name,
        donor_samples=10**12,
        receiver=name,
        receiver_samples=10**12,
        score=-0.12345678901234567,
        gain=0.12345678901234567,
        target=0.12345678901234567,
        best=0.12345678901234567,
        epochs=1.2345678901234567e-12,
        own_epochs=1.2345678901234567e-12,
    )


@settings(deadline=None, max_examples=examples(15))
@given(st.integers(0, 2**32), st.sampled_from([2, 20, 400]), st.sampled_from([1, 30, 300]))
def test_knowledge_stays_within_reserved_bytes(seed, kinds, most_live):
    year = Year(seed)
    for _ in range(300):
        year.step(kinds, most_live)
    live = {kind.key for kind in year.live}
    state = year.knowledge.state()
    assert len(year.knowledge.kinds) <= KINDS_KEPT + len(live)
    assert live <= year.knowledge.kinds.keys()
    assert len(year.knowledge.transfers) <= TRANSFERS_KEPT
    assert sum(bool(kind.losses) for kind in year.knowledge.kinds.values()) <= KINDS_KEPT
    assert size(state) <= RESERVED + BYTES_PER_LIVE_KIND * len(live)
    again = Knowledge(POLICY)
    again.restore(state)
    assert again.state() == state


@pytest.mark.slow
def test_largest_knowledge_fits_reserved_bytes():
    knowledge = Knowledge(POLICY.model_copy(update={"outcomes": (outcome("\1" * 64),) * MAX_OUTCOMES}))
    kinds = [knowledge.admit(workload(f"d{number}", accuracy=None)) for number in range(2 * KINDS_KEPT)]
    for kind in kinds:
        knowledge.profiled(kind.key, profile())
        kind.note_finished(10, 0.123456789)
    for first in range(KINDS_KEPT, 2 * KINDS_KEPT, MAX_KINDS):
        asked = [job(kind) for kind in kinds[first : first + MAX_KINDS]]
        problem = knowledge.estimate(asked)
        assert problem is not None
        knowledge.keep_estimates(solution(problem))
    assert len(knowledge.transfers) == TRANSFERS_KEPT
    live = len(knowledge.kinds)
    assert size(knowledge.state()) <= RESERVED + BYTES_PER_LIVE_KIND * live


def test_largest_shape_fits_reserved_bytes():
    modules = tuple(f"m{number}".ljust(LONGEST, "x") for number in range(64))
    script = Script()
    script.ready("a", hyperparameters=TuningHyperparameters(target_modules=modules))
    assert size(script.bench.zone.state()["speeds"]) <= 16 * 1_024


def test_profiles_of_unused_kinds_are_dropped_first():
    knowledge = Knowledge(POLICY)
    kinds = [knowledge.admit(workload(f"d{number}", accuracy=None)) for number in range(KINDS_KEPT)]
    for kind in kinds:
        knowledge.profiled(kind.key, profile(8, 8))
    knowledge.leave(kinds[7].key)
    newest = knowledge.admit(workload("newest", accuracy=None))
    assert knowledge.profiled(newest.key, profile(8, 8)) is None
    assert kinds[7].key not in knowledge.kinds
    next_one = knowledge.admit(workload("next", accuracy=None))
    assert knowledge.profiled(next_one.key, profile(8, 8)) is None
    assert not kinds[0].losses
    assert (kinds[0].is_profiled, kinds[0].is_usable) == (True, False), "it runs on, unmerged"
    assert all(kind.is_usable for kind in (*kinds[1:7], *kinds[8:], newest, next_one))


def test_answer_about_dropped_kinds_is_ignored():
    knowledge = Knowledge(POLICY)
    one, other = (knowledge.admit(workload(name, accuracy=None)) for name in "ab")
    for kind in (one, other):
        knowledge.profiled(kind.key, profile(8, 8))
    problem = knowledge.estimate([job(one), job(other)])
    one.forget_profile()
    knowledge.keep_estimates(solution(problem))
    assert {pair[1:] for pair in knowledge.transfers} == {(other.key, other.key)}


def test_answer_before_changed_similarity_is_unused():
    knowledge = Knowledge(POLICY)
    kind = knowledge.admit(workload("a", accuracy=None))
    knowledge.profiled(kind.key, profile(8, 8))
    problem = knowledge.estimate([job(kind)])
    knowledge.configure(MergingPolicy(transferability="task2feat"))
    assert not kind.is_profiled
    knowledge.keep_estimates(solution(problem))
    assert (kind.iterations, knowledge.transfers) == (None, {})


def test_longest_names_and_errors_fit_counted_bytes():
    """The bytes are checked after every event."""
    ids = [letter * LONGEST for letter in "ab"]
    nodes = tuple(
        node.model_copy(update={"id": f"n{index}".ljust(LONGEST, "x")})
        for index, node in enumerate(merging_zone(4, 1).nodes)
    )
    cell = merging_cell(4, 1, interval_s=120.0, idle_interval_s=None)
    zone = cell.zones[0].model_copy(update={"nodes": nodes})
    script = Script(cell=cell.model_copy(update={"zones": (zone,)}))
    script.ready(*ids, user="u" * LONGEST, accuracy=0.8123456789012345)
    script.plan(share(*ids, gpus=4))
    first, second = ids
    script.send(script.evaluated(first, 1.0, 0.2123456789012345))
    script.plan(share(*ids, gpus=3))
    script.end(*ids, iterations=100)
    text = "\N{GRINNING FACE}" * MAX_TEXT_LENGTH
    script.send(script.failed(first, permanent=True).model_copy(update={"error": text}))
    assert first not in script.bench.described["jobs"]
    script.plan(share(second, gpus=4))
    run = script.job(second)["run_id"]
    script.plan()
    path = "\N{GRINNING FACE}" * 512
    finished = script.finished(second, 400, run=run).model_copy(update={"adapter_path": path})
    assert len(script.send(finished)) == 1


def test_retried_job_counts_with_its_last_failure():
    script = Script()
    script.ready("a")
    kept = TuningJob(script.bench.cell.jobs.live["a"], 0, kind="", submitted_s=0.0)
    before = kept.state_bytes
    kept.given_up = {"node": "n0", "run_id": "r" * LONGEST}
    assert kept.state_bytes - before >= LONGEST


def test_kinds_of_one_user_leave_half_room():
    script = Script(bench=Bench())
    limit_room(script.bench.cell, 12_000)
    taken = 0
    while not isinstance((outcome := script.send(submit(f"j{taken}", "flood", f"d{taken}")))[0], JobRejected):
        taken += 1
    assert taken >= 2
    assert (outcome[0].facts["case"], outcome[0].facts["user"]) == ("jobs_of_user", "flood")
    assert not isinstance(script.send(submit("other", "ben", "x"))[0], JobRejected)


@pytest.mark.parametrize("field", ["dataset", "hyperparameters"])
def test_kinds_differ_by_fields_that_affect_learning(field):
    other = {"dataset": workload("b").dataset, "hyperparameters": workload(batch_size=16).hyperparameters}
    assert kind_key(workload()) != kind_key(workload().model_copy(update={field: other[field]}))
    assert kind_key(workload(epochs=3)) == kind_key(workload(epochs=4)), "its bound is no part of it"
