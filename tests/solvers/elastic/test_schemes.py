"""Properties of every scheme of allocation; a new scheme is added to `SCHEMES`."""

from collections.abc import Callable
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.elastic.demand import Scheme
from solvers.elastic.heuristics import Afs, FirstInFirstOut, Gandiva, Opportunistic
from solvers.elastic.pollux import Pollux
from solvers.elastic.two_phase import TwoPhase
from tests.support.elastic_rounds import Round, demand, granted_workers, rounds, training, used_gpus

SCHEMES: dict[str, Callable[[], Scheme]] = {
    "two-phase": TwoPhase,
    "two-phase, with a pause": lambda: TwoPhase(scaling_pause_s=30.0),
    "first in, first out": FirstInFirstOut,
    "opportunistic": Opportunistic,
    "gandiva": Gandiva,
    "afs": Afs,
    "pollux": lambda: Pollux(seed=1, generations=20, population=10),
}

every_scheme = pytest.mark.parametrize(
    "scheme", [pytest.param(make(), id=name) for name, make in SCHEMES.items()]
)


@every_scheme
@given(round_=rounds())
@settings(deadline=None)
def test_grants_fit_idle_and_released_gpus(scheme: Scheme, round_: Round) -> None:
    taken = used_gpus(round_.jobs, scheme.allocate(round_.waiting, round_.running, round_.free_gpus))
    for pool, gpus in taken.items():
        assert gpus <= round_.free_gpus[pool] + 1e-6


@every_scheme
@given(round_=rounds())
@settings(deadline=None)
def test_workers_stay_between_bounds(scheme: Scheme, round_: Round) -> None:
    by_id = {job.job_id: job for job in round_.jobs}
    for grant in scheme.allocate(round_.waiting, round_.running, round_.free_gpus):
        job = by_id[grant.job_id]
        assert job.min_workers <= grant.workers <= job.max_workers


@every_scheme
@given(round_=rounds(), data=st.data())
@settings(deadline=None)
def test_job_starts_only_in_fitting_pool(scheme: Scheme, round_: Round, data: st.DataObject) -> None:
    barred = st.frozensets(st.sampled_from(["training", "loaned"]))
    waiting = [job._replace(barred_pools=data.draw(barred)) for job in round_.waiting]
    by_id = {job.job_id: job for job in waiting}
    for grant in scheme.allocate(waiting, round_.running, round_.free_gpus):
        assert grant.job_id not in by_id or grant.pool in by_id[grant.job_id].open_pools


@every_scheme
@given(round_=rounds())
@settings(deadline=None)
def test_base_demand_never_moves(scheme: Scheme, round_: Round) -> None:
    by_id = {job.job_id: job for job in round_.jobs}
    for grant in scheme.allocate(round_.waiting, round_.running, round_.free_gpus):
        job = by_id[grant.job_id]
        assert grant.pool in (job.pools[:1] if job.workers else job.pools)
        assert grant.flexible_pool == grant.pool or job.spans_pools


@every_scheme
@given(round_=rounds())
@settings(deadline=None)
def test_job_gets_one_changing_grant(scheme: Scheme, round_: Round) -> None:
    grants = scheme.allocate(round_.waiting, round_.running, round_.free_gpus)
    by_id = {job.job_id: job for job in round_.jobs}
    assert len({grant.job_id for grant in grants}) == len(grants)
    for grant in grants:
        job = by_id[grant.job_id]
        now = (job.workers, job.flexible_pool or job.pools[0])
        assert (grant.workers, grant.flexible_pool) != now


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in SCHEMES.items()])
@given(round_=rounds())
@settings(deadline=None)
def test_round_is_independent_of_history(make: Callable[[], Scheme], round_: Round) -> None:
    used = make()
    first = used.allocate(round_.waiting, round_.running, round_.free_gpus)
    used.allocate(round_.waiting[1:], round_.running[1:], training(7.0))
    copied = deepcopy(round_)
    assert used.allocate(list(copied.waiting), list(copied.running), copied.free_gpus) == first
    assert make().allocate(round_.waiting, round_.running, round_.free_gpus) == first


@every_scheme
def test_a_job_alone_starts_where_there_is_room(scheme: Scheme) -> None:
    job = demand("a", 0, (3, 3), gpus_per_worker=2)
    assert granted_workers(scheme.allocate([job], [], training(6.0))) == {"a": 3}
    assert scheme.allocate([job], [], training(5.0)) == []


@every_scheme
def test_without_jobs_there_is_nothing_to_grant(scheme: Scheme) -> None:
    assert scheme.allocate([], [], training(8.0)) == []


@every_scheme
def test_thirds_of_gpus_add_up(scheme: Scheme) -> None:
    # Six loaned servers of 8 T4 each are 16 training GPUs, but a little less where floats are added up.
    free = sum([8 / 3] * 6)
    assert free < 16
    job = demand("a", 0, (16, 16), pools=("loaned",))
    assert granted_workers(scheme.allocate([job], [], {"training": 0.0, "loaned": free})) == {"a": 16}
