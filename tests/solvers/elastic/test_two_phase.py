"""Two-phase allocation: the thesis's examples, what each phase does, and what no round may break."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.elastic.demand import JobDemand, WorkerGrant
from solvers.elastic.two_phase import TwoPhase
from tests.support.examples import examples

A = JobDemand("a", 0, 2, 6, 1, 300.0, tuple(map(float, range(7))), ("training",))
"""Table 3.2: 50 s with 6 workers."""
B = JobDemand("b", 1, 2, 6, 1, 120.0, tuple(map(float, range(7))), ("training",))
"""Tables 3.2 and 3.4: 20 s with 6 workers."""
LATER_A = JobDemand("a", 0, 2, 3, 1, 300.0, tuple(map(float, range(4))), ("training",))
"""Table 3.4: 100 s with 3 workers."""


def job(job_id, arrival, workers, work_s, *, gpus=1, has=0, pools=("training",), **fields):
    """One that needs workers[0] and takes up to workers[1], and scales linearly."""
    least, most = workers
    return JobDemand(
        job_id, arrival, least, most, gpus, work_s, tuple(map(float, range(most + 1))), pools,
        workers=has, **({"flexible_pool": pools[0]} if has > least else {}) | fields,
    )  # fmt: skip


def completion_times_s(workers, demands, servers_gpus):
    """Return the JCTs of jobs that begin with these workers and are reallocated whenever one ends."""
    now_s, done_s = 0.0, {}
    left = {demand.job_id: demand for demand in demands}
    while left:
        step_s = min(left[job_id].remaining_s(workers[job_id]) for job_id in left)
        now_s += step_s
        for job_id, demand in list(left.items()):
            work_s = demand.remaining_work_s - step_s * demand.speedup[workers[job_id]]
            if work_s <= 1e-9:
                done_s[job_id] = now_s
                del left[job_id]
            else:
                flexible = "training" if workers[job_id] > demand.min_workers else None
                left[job_id] = demand._replace(
                    remaining_work_s=work_s, workers=workers[job_id], flexible_pool=flexible
                )
        free = servers_gpus - sum(workers[job_id] for job_id in left)
        for grant in TwoPhase().allocate([], list(left.values()), {"training": free, "loaned": 0}):
            workers = {**workers, grant.job_id: grant.workers}
    return done_s


@pytest.mark.parametrize(
    ("workers", "jct_a_s", "jct_b_s", "average_s"),
    [((6, 2), 50, 53.33, 51.67), ((2, 6), 63.33, 20, 41.67), ((4, 4), 60, 30, 45)],
)
def test_table_3_3(workers, jct_a_s, jct_b_s, average_s):
    times_s = completion_times_s({"a": workers[0], "b": workers[1]}, [A, B], 8)
    assert round(times_s["a"], 2) == jct_a_s
    assert round(times_s["b"], 2) == jct_b_s
    assert round((times_s["a"] + times_s["b"]) / 2, 2) == average_s


def test_table_3_2_minimum_running_times():
    assert (A.remaining_s(6), B.remaining_s(6), LATER_A.remaining_s(3)) == (50, 20, 100)


@pytest.mark.parametrize(
    ("workers", "jct_a_s", "jct_b_s", "average_s"), [((3, 5), 100, 24, 62), ((2, 6), 106.67, 20, 63.33)]
)
def test_table_3_4(workers, jct_a_s, jct_b_s, average_s):
    times_s = completion_times_s({"a": workers[0], "b": workers[1]}, [LATER_A, B], 8)
    assert round(times_s["a"], 2) == jct_a_s
    assert round(times_s["b"], 2) == jct_b_s
    assert round((times_s["a"] + times_s["b"]) / 2, 2) == average_s


def test_table_3_4_job_is_favoured():
    # Both need 2 workers; of the other four, one is worth 50 s to A, and four are worth 40 s to B.
    grants = TwoPhase().allocate([LATER_A, B], [], {"training": 8, "loaned": 0})
    assert grants == [
        WorkerGrant("b", 5, "training", "training"),
        WorkerGrant("a", 3, "training", "training"),
    ]


def test_figure_3_6_items_weigh_gpus():
    # Erratum L3; A has 2 GPUs per worker: weight 2, worth 50 s; B's weigh 1 to 4, worth 20, 30, 36 and 40 s.
    two_gpus = LATER_A._replace(gpus_per_worker=2)
    workers = {}
    for flexible_gpus in range(7):
        free = {"training": 6 + flexible_gpus, "loaned": 0}
        grants = TwoPhase().allocate([two_gpus, B], [], free)
        workers[flexible_gpus] = tuple(
            {grant.job_id: grant.workers for grant in grants}[each] for each in "ab"
        )
    assert workers == {
        0: (2, 2),
        1: (2, 3),  # 20
        2: (3, 2),  # 50, not 30
        3: (3, 3),  # 70, not 36
        4: (3, 4),  # 80, not 40
        5: (3, 5),  # 86
        6: (3, 6),  # 90
    }


def test_shortest_jobs_get_base_demands():
    long = job("long", 0, (1, 1), 900.0)
    large = job("large", 1, (4, 4), 400.0)
    short = job("short", 2, (2, 2), 240.0)
    grants = TwoPhase().allocate([long, large, short], [], {"training": 3, "loaned": 0})
    assert [grant.job_id for grant in grants] == ["short", "long"]


def test_shortest_means_done_first_with_w_max():
    elastic = job("elastic", 0, (1, 10), 1000.0)
    inelastic = job("inelastic", 1, (1, 1), 200.0)
    grants = TwoPhase().allocate([elastic, inelastic], [], {"training": 1, "loaned": 0})
    assert grants == [WorkerGrant("elastic", 1, "training", "training")]


def test_equal_jobs_start_by_arrival():
    twins = [job("z", 0, (1, 1), 60.0), job("a", 1, (1, 1), 60.0)]
    assert TwoPhase().allocate(twins, [], {"training": 1, "loaned": 0}) == [
        WorkerGrant("z", 1, "training", "training")
    ]


def test_job_starts_in_preferred_then_other_pool():
    waiting = [
        job("one", 0, (2, 2), 60.0, pools=("loaned", "training")),
        job("two", 1, (2, 2), 90.0, pools=("loaned", "training")),
        job("three", 2, (2, 2), 99.0, pools=("loaned", "training")),
    ]
    grants = TwoPhase().allocate(waiting, [], {"training": 2, "loaned": 2 + 2 / 3})
    assert [(grant.job_id, grant.pool) for grant in grants] == [("one", "loaned"), ("two", "training")]


def test_base_demand_precedes_flexible_workers():
    running = job("running", 0, (1, 4), 4000.0, has=4)
    waiting = job("waiting", 1, (2, 2), 9000.0)
    grants = TwoPhase().allocate([waiting], [running], {"training": 0, "loaned": 0})
    assert grants == [
        WorkerGrant("running", 2, "training", "training"),
        WorkerGrant("waiting", 2, "training", "training"),
    ]


def test_base_demands_of_running_jobs_stay():
    running = job("running", 0, (2, 4), 4000.0, has=2)
    assert TwoPhase().allocate([job("w", 1, (1, 1), 1.0)], [running], {"training": 0, "loaned": 0}) == []


def test_flexible_workers_move_to_larger_gain():
    slow = job("slow", 0, (1, 2), 1000.0)
    fast = job("fast", 1, (1, 2), 10.0, has=2)
    slow = slow._replace(workers=1)
    grants = TwoPhase().allocate([], [slow, fast], {"training": 0, "loaned": 0})
    assert grants == [
        WorkerGrant("slow", 2, "training", "training"),
        WorkerGrant("fast", 1, "training", "training"),
    ]


def test_resize_gains_more_than_its_pause():
    # The worker is worth 500 s to one and 450 s to the other, that has it.
    poor = job("poor", 0, (1, 2), 1000.0)._replace(workers=1)
    rich = job("rich", 1, (1, 2), 900.0, has=2)
    free = {"training": 0, "loaned": 0}
    assert [grant.job_id for grant in TwoPhase(scaling_pause_s=24.0).allocate([], [poor, rich], free)] == [
        "poor", "rich"
    ]  # fmt: skip
    # Both would pause.
    assert TwoPhase(scaling_pause_s=26.0).allocate([], [poor, rich], free) == []
    # An idle GPU is worth its pause, unless the job is nearly done.
    assert len(TwoPhase(scaling_pause_s=26.0).allocate([], [poor], {"training": 1, "loaned": 0})) == 1
    nearly = poor._replace(remaining_work_s=50.0)
    assert TwoPhase(scaling_pause_s=26.0).allocate([], [nearly], {"training": 1, "loaned": 0}) == []


def test_move_to_loan_gains_more_than_pause():
    spanning = job("spanning", 0, (1, 3), 60.0, pools=("training",), spans_pools=True)._replace(
        workers=2, flexible_pool="training"
    )
    # As many are no reason to move; one more is worth 10 s.
    assert TwoPhase().allocate([], [spanning], {"training": 0, "loaned": 1}) == []
    free = {"training": 0, "loaned": 2}
    assert TwoPhase(scaling_pause_s=10.0).allocate([], [spanning], free) == []
    assert TwoPhase(scaling_pause_s=9.0).allocate([], [spanning], free) == [
        WorkerGrant("spanning", 3, "training", "loaned")
    ]


def test_spanning_job_uses_roomier_pool():
    spanning = job("spanning", 0, (1, 9), 60.0, pools=("training", "loaned"), spans_pools=True)
    for loaned, pool, workers in ((1, "training", 5), (4, "loaned", 5), (6, "loaned", 7)):
        free = {"training": 5, "loaned": loaned}
        assert TwoPhase().allocate([spanning], [], free) == [
            WorkerGrant("spanning", workers, "training", pool)
        ]


def test_job_on_full_loans_spreads_to_training():
    spanning = job("spanning", 0, (2, 9), 60.0, pools=("loaned",), spans_pools=True)._replace(workers=2)
    grants = TwoPhase().allocate([], [spanning], {"training": 3, "loaned": 0})
    assert grants == [WorkerGrant("spanning", 5, "loaned", "training")]


def test_a_job_that_starts_pays_no_pause():
    waiting = job("waiting", 0, (1, 3), 30.0)
    grants = TwoPhase(scaling_pause_s=1000.0).allocate([waiting], [], {"training": 3, "loaned": 0})
    assert grants == [WorkerGrant("waiting", 3, "training", "training")]


def test_heterogeneous_jobs_come_after_all_others():
    fields = {"pools": ("training", "loaned"), "spans_pools": True, "comes_last": True}
    spanning = job("spanning", 0, (1, 3), 30.0, **fields)
    other = job("other", 1, (1, 3), 3000.0)
    grants = TwoPhase().allocate([spanning, other], [], {"training": 1, "loaned": 0})
    assert [grant.job_id for grant in grants] == ["other"]
    grants = TwoPhase().allocate([spanning, other], [], {"training": 3, "loaned": 1})
    assert grants == [
        WorkerGrant("other", 2, "training", "training"),
        WorkerGrant("spanning", 2, "training", "loaned"),
    ]


def test_flexible_workers_join_base_without_loans():
    spanning = job("s", 0, (1, 3), 30.0, pools=("training", "loaned"), spans_pools=True)
    grants = TwoPhase().allocate([spanning], [], {"training": 4, "loaned": 2 / 3})
    assert grants == [WorkerGrant("s", 3, "training", "training")]


def test_slower_span_is_avoided():
    # Two workers at 40 % in both pools are slower than one in one; three are faster.
    fields = {"pools": ("training", "loaned"), "spans_pools": True, "spanning_speed": 0.4}
    running = job("s", 0, (1, 3), 30.0, **fields)._replace(workers=1)
    assert TwoPhase().allocate([], [running], {"training": 0, "loaned": 1}) == []
    grants = TwoPhase().allocate([], [running], {"training": 0, "loaned": 2})
    assert grants == [WorkerGrant("s", 3, "training", "loaned")]


def test_thirds_of_loaned_gpus_add_up():
    running = job("r", 0, (1, 9), 3000.0, pools=("loaned",))._replace(workers=1)
    thirds = sum([1 / 3] * 18)
    assert thirds < 6
    (grant,) = TwoPhase().allocate([], [running], {"training": 0, "loaned": thirds})
    assert grant.workers == 7


@pytest.mark.parametrize("pause_s", [-1.0, math.inf, math.nan])
def test_invalid_pause_is_refused(pause_s):
    with pytest.raises(ValueError, match="scaling_pause_s"):
        TwoPhase(pause_s)


@st.composite
def rounds(draw, max_jobs):
    """Jobs that wait, jobs that run, and idle GPUs."""
    waiting, running = [], []
    for arrival in range(draw(st.integers(0, max_jobs))):
        least = draw(st.integers(1, 3))
        most = least + draw(st.integers(0, 4))
        speedup, total = [0.0], 0.0
        for _ in range(most):
            total += draw(st.sampled_from([1.0, 0.8, 0.25]))
            speedup.append(total)
        spans = draw(st.booleans())
        pools = draw(st.permutations(["training", "loaned"]))
        demand = JobDemand(
            f"j{draw(st.integers(0, 9))}{arrival}", arrival, least, most, draw(st.sampled_from([1, 2, 4])),
            float(draw(st.integers(1, 900))), tuple(speedup), tuple(pools),
            spans_pools=spans, comes_last=spans and draw(st.booleans()),
            spanning_speed=draw(st.sampled_from([1.0, 0.7])),
        )  # fmt: skip
        if draw(st.booleans()):
            waiting.append(demand)
        else:
            has = draw(st.integers(least, most))
            base = pools[0]
            flexible = (
                None if has == least else draw(st.sampled_from(["training", "loaned"])) if spans else base
            )
            running.append(demand._replace(pools=(base,), workers=has, flexible_pool=flexible))
    free = {"training": draw(st.integers(0, 8)), "loaned": draw(st.integers(0, 24)) / 3}
    return waiting, running, free


def gpus_used(demands, grants):
    """Return the GPUs that jobs use in each pool after the grants, base demand and flexible apart."""
    granted = {grant.job_id: grant for grant in grants}
    base, flexible = {"training": 0, "loaned": 0}, {"training": 0, "loaned": 0}
    for demand in demands:
        grant = granted.get(demand.job_id)
        if grant is None and demand.workers:
            grant = WorkerGrant(
                demand.job_id, demand.workers, demand.pools[0], demand.flexible_pool or demand.pools[0]
            )
        if grant is not None:
            base[grant.pool] += demand.min_workers * demand.gpus_per_worker
            flexible[grant.flexible_pool] += (grant.workers - demand.min_workers) * demand.gpus_per_worker
    return base, flexible


@settings(max_examples=examples(300), deadline=None)
@given(rounds(10), st.sampled_from([0.0, 5.0]))
def test_no_round_breaks_a_rule(jobs, pause_s):
    waiting, running, free = jobs
    grants = TwoPhase(pause_s).allocate(waiting, running, free)
    demands = {demand.job_id: demand for demand in waiting + running}
    assert len({grant.job_id for grant in grants}) == len(grants)
    for grant in grants:
        demand = demands[grant.job_id]
        assert demand.min_workers <= grant.workers <= demand.max_workers
        if grant.workers > demand.min_workers and grant.flexible_pool != grant.pool:
            assert demand.spans_pools
        assert grant.pool in demand.pools
        if demand.workers:
            assert (grant.workers, grant.flexible_pool) != (demand.workers, demand.flexible_pool)
    before = gpus_used(running, [])
    after = gpus_used(waiting + running, grants)
    for pool in ("training", "loaned"):
        taken = after[0][pool] + after[1][pool] - before[0][pool] - before[1][pool]
        assert taken <= free[pool] + 1e-9
    assert TwoPhase(pause_s).allocate(waiting, running, free) == grants


MOST_ROUNDS = 8
"""A job that may span pools can change to the room that another has left, round after round, as long as each
change shortens running times."""


@settings(max_examples=examples(300), deadline=None)
@given(rounds(10), st.sampled_from([0.0, 5.0]))
def test_rounds_at_the_same_moment_soon_change_nothing(jobs, pause_s):
    waiting, running, free = jobs
    for number in range(MOST_ROUNDS):
        grants = {grant.job_id: grant for grant in TwoPhase(pause_s).allocate(waiting, running, free)}
        if not grants:
            return
        assert number == 0 or any(demand.spans_pools for demand in running)
        before, after = gpus_used(running, []), gpus_used(waiting + running, list(grants.values()))
        free = {
            pool: free[pool] + before[0][pool] + before[1][pool] - after[0][pool] - after[1][pool]
            for pool in free
        }
        demands = sorted(waiting + running, key=lambda demand: demand.arrival)
        waiting = [demand for demand in waiting if demand.job_id not in grants]
        running = [granted(demand, grants.get(demand.job_id)) for demand in demands]
        running = [demand for demand in running if demand.workers]
    raise AssertionError(f"{MOST_ROUNDS} rounds at the same moment, each another")


def granted(demand, grant):
    if grant is None:
        return demand
    flexible_pool = grant.flexible_pool if grant.workers > demand.min_workers else None
    return demand._replace(workers=grant.workers, pools=(grant.pool,), flexible_pool=flexible_pool)


@settings(max_examples=examples(150), deadline=None)
@given(rounds(4))
def test_flexible_demands_minimise_running_times(jobs):
    _, running, free = jobs
    running = [
        demand._replace(
            pools=("training",),
            spans_pools=False,
            comes_last=False,
            workers=demand.min_workers,
            flexible_pool=None,
        )
        for demand in running
    ]
    saved_s = {
        demand.job_id: demand.remaining_s(demand.min_workers) - demand.remaining_s(demand.workers)
        for demand in running
    }
    for grant in TwoPhase().allocate([], running, free):
        (demand,) = (each for each in running if each.job_id == grant.job_id)
        saved_s[grant.job_id] = demand.remaining_s(demand.min_workers) - demand.remaining_s(grant.workers)
    best_s = max(
        math.fsum(
            demand.remaining_s(demand.min_workers) - demand.remaining_s(workers)
            for demand, workers in zip(running, each, strict=True)
        )
        for each in itertools.product(
            *(range(demand.min_workers, demand.max_workers + 1) for demand in running)
        )
        if sum(
            (workers - demand.min_workers) * demand.gpus_per_worker
            for demand, workers in zip(running, each, strict=True)
        )
        <= free["training"]
    )
    assert math.fsum(saved_s.values()) == pytest.approx(best_s)


def test_strides_over_wide_ranges_are_nearly_best(monkeypatch):
    waiting = [job(name, number, (1, 60), 1_000.0 * (number + 1)) for number, name in enumerate("abcd")]
    free = {"training": 100.0}
    work_s = {demand.job_id: demand.remaining_work_s for demand in waiting}

    def running_s():
        granted = {grant.job_id: grant.workers for grant in TwoPhase().allocate(waiting, [], free)}
        assert sum(granted.values()) <= 100
        return sum(work_s[name] / workers for name, workers in granted.items())

    exact_s = running_s()
    monkeypatch.setattr("solvers.elastic.two_phase.MOST_STEPS", 4_000)
    assert exact_s < running_s() < 1.1 * exact_s


def test_present_size_is_offered_with_strides(monkeypatch):
    monkeypatch.setattr("solvers.elastic.two_phase.MOST_STEPS", 4_000)
    running = [
        job(name, number, (1, 60), 1_000.0)._replace(workers=24, flexible_pool="training")
        for number, name in enumerate("abcd")
    ]
    assert TwoPhase(scaling_pause_s=100.0).allocate([], running, {"training": 4.0}) == []


@pytest.mark.parametrize(
    ("training", "loaned", "pool", "workers"),
    [
        (8, 2, "training", 8),
        (8, 8, "training", 8),
        (6, 7, "loaned", 7),
        (2, 4, "loaned", 4),
        (1, 2, "loaned", 2),
        (3, 1, "training", 3),
    ],
)
def test_loan_without_more_workers_is_declined(training, loaned, pool, workers):
    elastic = job("elastic", 0, (2, 8), 600.0, pools=("loaned", "training"))
    grants = TwoPhase().allocate([elastic], [], {"training": training, "loaned": loaned})
    assert grants == [WorkerGrant("elastic", workers, pool, pool)]


def test_flexible_workers_of_others_attract_no_job():
    running = job("running", 0, (2, 8), 9_000.0, has=8)
    elastic = job("elastic", 1, (2, 8), 600.0, pools=("loaned", "training"))
    grants = TwoPhase().allocate([elastic], [running], {"training": 0, "loaned": 3})
    assert grants == [WorkerGrant("elastic", 3, "loaned", "loaned")]


def test_starting_jobs_share_idle_gpus():
    jobs = [job(name, at, (1, 4), 600.0 + at, pools=("loaned", "training")) for at, name in enumerate("abc")]
    grants = TwoPhase().allocate(jobs, [], {"training": 4, "loaned": 2})
    assert [(grant.job_id, grant.pool, grant.workers) for grant in grants] == [
        ("a", "training", 2),
        ("b", "loaned", 2),
        ("c", "training", 2),
    ]


def test_base_demands_of_others_come_before_width():
    elastic = job("elastic", 0, (1, 8), 60.0, pools=("loaned", "training"))
    rigid = job("rigid", 1, (6, 6), 600.0)
    grants = TwoPhase().allocate([elastic, rigid], [], {"training": 8, "loaned": 3})
    assert grants == [
        WorkerGrant("elastic", 3, "loaned", "loaned"),
        WorkerGrant("rigid", 6, "training", "training"),
    ]


@given(
    least=st.integers(1, 4),
    more=st.integers(0, 6),
    training=st.integers(0, 12),
    loaned=st.integers(0, 12),
    prefers_loans=st.booleans(),
)
def test_loan_costs_a_lone_job_no_worker(least, more, training, loaned, prefers_loans):
    pools = ("loaned", "training") if prefers_loans else ("training", "loaned")
    alone = job("alone", 0, (least, least + more), 600.0, pools=pools)
    without, with_loan = (
        sum(
            grant.workers
            for grant in TwoPhase().allocate([alone], [], {"training": training, "loaned": gpus})
        )
        for gpus in (0, loaned)
    )
    assert with_loan >= without
