"""Choice of servers to reclaim: the thesis's example, the rules of preemption, and the exact optimum as the
oracle."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.elastic.reclaim_optimum import reclaim_optimum
from solvers.elastic.cluster import Cluster
from solvers.elastic.least_preemptions import _begin, _pick_by_cost, _pick_by_yield
from solvers.elastic.lent import HostedJob, Lent, LentServer, hosting_of, lent_by, reclaim_of
from solvers.elastic.reclaiming import (
    least_preemption_cost,
    random_choice,
    smallest_count,
)
from tests.support.examples import examples


def lent(gpus, *jobs):
    """Servers 1, 2, ... of so many GPUs each."""
    return Lent(tuple(LentServer(str(number + 1), each) for number, each in enumerate(gpus)), jobs)


def inelastic(job_id, workers, gpus=1):
    return HostedJob(job_id, sum(workers.values()), gpus, workers)


FIGURE_3_5 = lent(
    [8] * 6,
    inelastic("a", {"1": 8, "2": 8}),
    inelastic("b", {"3": 8}),
    inelastic("c", {"4": 8, "5": 2}),
    inelastic("d", {"5": 2, "6": 8}),
)
"""Redrawn from Table 3.1: 80 % of the GPUs of c are on server 4, and 80 % of d's on server 6."""


def test_table_3_1():
    # Erratum L2: of each server the running jobs, the sum of their GPU fractions, and of server fractions.
    of = {server.server_id: [] for server in FIGURE_3_5.servers}
    for job in FIGURE_3_5.jobs:
        for server_id in job.workers:
            of[server_id].append(job)
    jobs = {server_id: len(there) for server_id, there in of.items()}
    gpu_fractions = {
        server_id: sum(job.workers[server_id] / sum(job.workers.values()) for job in there)
        for server_id, there in of.items()
    }
    assert jobs == {"1": 1, "2": 1, "3": 1, "4": 1, "5": 2, "6": 1}
    assert gpu_fractions == {"1": 0.5, "2": 0.5, "3": 1, "4": 0.8, "5": 0.4, "6": 0.8}


def test_figure_3_5_returns_servers_1_and_2():
    reclaim = least_preemption_cost(FIGURE_3_5, 2)
    assert reclaim.servers == ("1", "2")
    assert reclaim.preempted == ("a",)
    assert reclaim.collateral_damage == 0
    assert reclaim_optimum(FIGURE_3_5, 2) == reclaim
    assert least_preemption_cost(FIGURE_3_5, 1).preempted == ("b",)


def test_least_fraction_sum_preempts_two_jobs():
    assert reclaim_of(FIGURE_3_5, ["5"]).preempted == ("c", "d")


def test_flexible_workers_go_first_without_preemption():
    elastic = HostedJob("e", 4, 1, {"1": 4, "2": 2, "3": 2})
    picture = lent([4, 4, 4, 4], elastic, inelastic("i", {"4": 1}))
    reclaim = least_preemption_cost(picture, 2)
    assert reclaim.servers == ("2", "3")
    assert (reclaim.preempted, reclaim.harmless) == ((), 2)
    assert reclaim.scaled_in == {"e": {"2": 2, "3": 2}}
    # Now it can lose no more, and on three servers its preemption cost is 1/3 each: that of the other is 1.
    assert least_preemption_cost(picture, 3).preempted == ("e",)


def test_flexible_workers_may_replace_base_ones():
    elastic = HostedJob("e", 2, 1, {"1": 2, "training": 2})
    reclaim = least_preemption_cost(lent([4], elastic), 1)
    assert (reclaim.preempted, reclaim.scaled_in) == ((), {"e": {"1": 2}})


def test_spare_workers_do_not_make_up_for_others():
    job = HostedJob("e", 2, 1, {"training": 2}, {"1": 6})
    assert reclaim_of(lent([8], job), ["1"]).scaled_in == {"e": {"1": 6}}
    job = HostedJob("e", 2, 1, {"1": 2}, {"training": 6})
    reclaim = reclaim_of(lent([8], job), ["1"])
    assert reclaim.preempted == ("e",)
    assert reclaim.collateral_damage == 6 / 8


def test_empty_servers_go_before_those_with_flexible_workers():
    elastic = HostedJob("e", 1, 1, {"1": 1, "2": 4})
    reclaim = least_preemption_cost(lent([4, 4, 4], elastic), 1)
    assert (reclaim.servers, reclaim.scaled_in) == (("3",), {})


def test_costs_are_counted_again_after_each_pick():
    # Server 1 alone is dear; once 2 and 3 go with the large job, it is free.
    large = inelastic("large", {"1": 8, "2": 8, "3": 8})
    picture = lent([8] * 5, large, inelastic("x", {"4": 8}), inelastic("y", {"5": 8}))
    reclaim = least_preemption_cost(picture, 3)
    assert (reclaim.servers, reclaim.preempted) == (("1", "2", "3"), ("large",))


def test_ties_choose_less_collateral_damage():
    picture = lent([8] * 4, inelastic("wide", {"1": 8, "2": 8, "3": 8}), inelastic("narrow", {"4": 8}))
    reclaim = least_preemption_cost(picture, 1)
    assert (reclaim.servers, reclaim.collateral_damage) == (("4",), 0)
    twins = lent([8] * 2, inelastic("b", {"1": 8, "training": 4}), inelastic("a", {"2": 8}))
    assert least_preemption_cost(twins, 1).preempted == ("a",)


def test_vacated_servers_precede_free_ones():
    # Server 4 costs no job anything, but one is not enough; the job's three are vacated anyway.
    picture = lent([8] * 4, inelastic("a", {"1": 8, "2": 8, "3": 8}))
    assert least_preemption_cost(picture, 1).servers == ("4",)
    reclaim = least_preemption_cost(picture, 2)
    assert (reclaim.servers, reclaim.preempted) == (("1", "2"), ("a",))
    assert reclaim.collateral_damage == 8 / 16
    assert least_preemption_cost(picture, 3).collateral_damage == 0


def test_free_servers_come_first():
    jobs = inelastic("a", {"1": 8}), HostedJob("e", 1, 1, {"3": 2, "training": 1})
    reclaim = least_preemption_cost(lent([8, 8, 8], *jobs), 3)
    assert (reclaim.servers, reclaim.harmless) == (("2", "3", "1"), 2)


def test_smallest_count_counts_jobs_once():
    picture = lent(
        [8] * 3, inelastic("a", {"1": 4}), inelastic("b", {"1": 4}), inelastic("c", {"2": 8, "3": 8})
    )
    assert smallest_count(picture, 1).servers == ("2",)
    assert smallest_count(picture, 1).collateral_damage == 1
    # Thesis, section 3.4: with costs that do not depend on each other, 1 and 2 are no better than 3 and 4.
    assert smallest_count(FIGURE_3_5, 3).preempted == ("a", "b")


def test_the_same_seed_chooses_the_same_servers():
    assert random_choice(7)(FIGURE_3_5, 3) == random_choice(7)(FIGURE_3_5, 3)
    assert len({random_choice(seed)(FIGURE_3_5, 3).servers for seed in range(20)}) > 5


@pytest.mark.parametrize("choose", [least_preemption_cost, smallest_count, random_choice(0), reclaim_optimum])
def test_more_servers_than_there_are_cannot_go(choose):
    with pytest.raises(ValueError, match="7 servers are requested, and 6 are on loan"):
        choose(FIGURE_3_5, 7)
    with pytest.raises(ValueError, match="-1 servers"):
        choose(FIGURE_3_5, -1)
    assert choose(FIGURE_3_5, 0).servers == ()
    assert len(choose(FIGURE_3_5, 6).servers) == 6


def test_job_below_base_demand_is_refused():
    with pytest.raises(ValueError, match="job a has 1 workers, fewer than its base 2"):
        least_preemption_cost(lent([8], HostedJob("a", 2, 1, {"1": 1})), 1)


def test_the_picture_of_a_cluster():
    cluster = Cluster()
    for server_id in ("l0", "l1", "l2"):
        cluster.add_server(server_id, "loaned", 8, 3)
    cluster.add_server("t", "training", 8)
    cluster.place("both", 1, 2, "loaned", "base")
    cluster.place("both", 1, 2, "loaned", "flexible")
    cluster.place("spans", 2, 1, "training", "base")
    cluster.place("spans", 1, 1, "loaned", "flexible")
    cluster.place("elsewhere", 1, 1, "training", "inelastic")
    cluster.place("alone", 1, 2, "loaned", "inelastic")
    picture = lent_by(cluster, ["l0", "l1", "l2"])
    assert {job.job_id: job for job in picture.jobs} == {
        "both": HostedJob("both", 3, 2, {"l0": 3, "l1": 3}),
        "spans": HostedJob("spans", 2, 1, {"t": 2}, {"l1": 2, "l2": 1}),
        "alone": HostedJob("alone", 3, 2, {"l0": 1, "l2": 2}),
    }
    assert picture.servers == tuple(LentServer(each, 8) for each in ("l0", "l1", "l2"))


@st.composite
def pictures(draw, max_servers, max_jobs):
    """Jobs on up to three servers each, some of them not on loan, with workers to spare or without."""
    servers = [str(number) for number in range(draw(st.integers(1, max_servers)))]
    jobs = []
    for number in range(draw(st.integers(0, max_jobs))):
        where = st.sampled_from([*servers, "training"])
        workers = draw(st.dictionaries(where, st.integers(1, 3), min_size=1, max_size=3))
        spare = draw(st.dictionaries(where, st.integers(1, 3), max_size=2)) if draw(st.booleans()) else {}
        total = sum(workers.values())
        least = total if draw(st.booleans()) else draw(st.integers(1, total))
        jobs.append(HostedJob(f"j{number}", least, draw(st.sampled_from([1, 2])), workers, spare))
    return Lent(tuple(LentServer(each, 8) for each in servers), tuple(jobs))


def cost_of(picture, servers):
    reclaim = reclaim_of(picture, servers)
    return (len(reclaim.preempted), round(reclaim.collateral_damage, 9))


@settings(max_examples=examples(60), deadline=None)
@given(pictures(6, 7), st.data())
def test_the_exact_model_finds_what_brute_force_finds(picture, data):
    count = data.draw(st.integers(0, len(picture.servers)))
    servers = [server.server_id for server in picture.servers]
    optimum = reclaim_optimum(picture, count)
    best = min(cost_of(picture, each) for each in itertools.combinations(servers, count))
    assert (len(optimum.preempted), round(optimum.collateral_damage, 9)) == best


@settings(max_examples=examples(300), deadline=None)
@given(pictures(7, 9), st.data())
def test_choice_is_consistent_and_never_beats_optimum(picture, data):
    count = data.draw(st.integers(0, len(picture.servers)))
    servers = {server.server_id for server in picture.servers}
    fewest = min(cost_of(picture, each)[0] for each in itertools.combinations(sorted(servers), count))
    jobs = {job.job_id: job for job in picture.jobs}
    for choose in (least_preemption_cost, smallest_count, random_choice(3)):
        reclaim = choose(picture, count)
        gone = set(reclaim.servers)
        assert len(reclaim.servers) == len(gone) == count
        assert gone <= servers
        assert len(reclaim.preempted) >= fewest
        assert not set(reclaim.preempted) & set(reclaim.scaled_in)
        for job_id, job in jobs.items():
            left = sum(workers for each, workers in job.workers.items() if each not in gone)
            assert (job_id in reclaim.preempted) == (left < job.min_workers)
        for job_id, lost in reclaim.scaled_in.items():
            assert lost == {each: n for each, n in jobs[job_id].all_workers().items() if each in gone}
            assert lost
        harmless = reclaim.servers[: reclaim.harmless]
        assert reclaim_of(picture, harmless).preempted == ()
        assert choose(picture, count) == reclaim
        assert choose(replace(picture, servers=picture.servers[::-1]), count).servers == reclaim.servers


def test_alternative_losses_still_return_enough():
    picture = lent(
        (16, 16, 16, 16),
        # It can lose its workers on servers 1 and 2, or those on server 3.
        HostedJob("either", 14, 1, {"1": 3, "2": 3, "3": 4, "training": 10}),
        HostedJob("flexible", 10, 1, {"1": 5, "2": 5, "training": 10}),
        inelastic("large", {"3": 8, "4": 8}),
    )
    reclaim = least_preemption_cost(picture, 3)
    assert sorted(reclaim.servers) == ["1", "2", "4"]
    assert reclaim.preempted == ("large",)


@settings(max_examples=examples(200), deadline=None)
@given(pictures(7, 9), st.integers(0, 60), st.data())
def test_exhausted_search_returns_enough(picture, most_steps, data):
    count = data.draw(st.integers(0, len(picture.servers)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("solvers.elastic.least_preemptions.MOST_STEPS", most_steps)
        reclaim = least_preemption_cost(picture, count)
    assert len(set(reclaim.servers)) == count
    jobs = {job.job_id: job for job in picture.jobs}
    for job_id, job in jobs.items():
        assert (job_id in reclaim.preempted) == job.is_preempted_without(reclaim.servers)


def test_widespread_jobs_need_bounded_steps():
    servers = [f"s{number:03}" for number in range(300)]
    jobs = [
        inelastic(f"j{number}", {servers[(number * 7 + each) % 300]: 1 for each in range(100)})
        for number in range(120)
    ]
    hosting, _ = hosting_of(Lent(tuple(LentServer(each, 64) for each in servers), tuple(jobs)))
    one_more = hosting.place_job.size + 100 * 100
    for pick in (_pick_by_cost, _pick_by_yield):
        unlimited = pick(hosting, _begin(hosting, 50), 50, 10**9)
        progress = _begin(hosting, 50)
        assert unlimited > 400_000
        assert pick(hosting, progress, 50, 200_000) < 200_000 + one_more
        assert progress.chosen.sum() == 50


@settings(max_examples=examples(200), deadline=None)
@given(pictures(8, 10), st.data())
def test_sufficient_harmless_servers_avoid_preemption(picture, data):
    spared = [job for job in picture.jobs if job.min_workers == sum(job.workers.values())]
    firm = {each for job in spared for each in job.workers}
    safe = [server.server_id for server in picture.servers if server.server_id not in firm]
    flexible = [job for job in picture.jobs if job not in spared]
    # A job with workers to spare can lose all that it has on such servers.
    picture = replace(
        picture,
        jobs=(
            *spared,
            *(
                job._replace(
                    workers={**job.workers, "training": job.workers.get("training", 0) + job.min_workers}
                )
                for job in flexible
            ),
        ),
    )
    count = data.draw(st.integers(0, len(safe)))
    assert least_preemption_cost(picture, count).preempted == ()
