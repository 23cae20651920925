"""The fluid simulator: times worked out by hand, and what holds for any jobs."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.merging.fluid import Cluster, FluidJob, Outcome, Placement, Timing, simulate
from solvers.merging.scheme import Contender, Scheme
from solvers.merging.schemes import RIVALS
from solvers.merging.srtf import ShortestRemainingTimeFirst
from tests.support.examples import examples

STEPS: Mapping[Placement, float] = {
    (1,): 1.0,
    (2,): 0.5,
    (1, 1): 0.8,
    (4,): 0.25,
    (2, 2): 0.4,
    (1, 3): 0.4,
    (1, 1, 2): 0.5,
}


def job(
    job_id: str,
    submitted_s: float,
    iterations: float,
    gpus: int = 1,
    step_s: Mapping[Placement, float] = STEPS,
) -> FluidJob:
    return FluidJob(job_id, submitted_s, gpus, iterations, step_s)


def ends(outcome: Outcome) -> dict[str, float]:
    return {each.job_id: each.finished_s for each in outcome.finished}


class Scripted:
    """Gives what it was told to, round by round, and the last of it from then on."""

    def __init__(self, *rounds: dict[str, int]) -> None:
        self._rounds = list(rounds)
        self.seen: list[list[Contender]] = []

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        self.seen.append(list(jobs))
        granted = self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]
        return {each.job_id: granted[each.job_id] for each in jobs if each.job_id in granted}


def test_a_job_waits_for_the_next_round_and_then_pays_for_its_start() -> None:
    outcome = simulate(
        [job("a", 30.0, 100.0)],
        ShortestRemainingTimeFirst(),
        Cluster(1, 4),
        Timing(60.0, switch_s=10.0),
    )
    assert ends(outcome) == {"a": 170.0}
    assert (outcome.average_s, outcome.makespan_s, outcome.switches) == (140.0, 140.0, 1)


def test_an_eager_scheme_decides_as_soon_as_a_job_arrives_or_ends() -> None:
    jobs = [job("a", 30.0, 100.0, 4), job("b", 40.0, 200.0, 4)]
    scheme, cluster = ShortestRemainingTimeFirst(), Cluster(1, 4)
    assert ends(simulate(jobs, scheme, cluster, Timing(60.0, eager=True))) == {"a": 55.0, "b": 105.0}
    assert ends(simulate(jobs, scheme, cluster, Timing(60.0))) == {"a": 85.0, "b": 170.0}


def test_a_preempted_job_goes_on_where_it_was_and_pays_again() -> None:
    scheme = Scripted({"a": 1}, {"b": 1}, {"a": 1, "b": 0})
    outcome = simulate(
        [job("a", 0.0, 150.0), job("b", 0.0, 10.0)], scheme, Cluster(1, 1), Timing(100.0, switch_s=20.0)
    )
    # a does 80 of its iterations before 100 s, and the other 70 from 220 s on.
    assert ends(outcome) == {"b": 130.0, "a": 290.0}
    assert outcome.switches == 3


def test_a_change_of_size_costs_a_switch_and_keeping_it_costs_nothing() -> None:
    scheme = Scripted({"a": 1}, {"a": 1}, {"a": 4})
    outcome = simulate([job("a", 0.0, 400.0)], scheme, Cluster(1, 4), Timing(100.0, switch_s=20.0))
    # 180 iterations before 200 s; the other 220 at four a second from 220 s on.
    assert ends(outcome) == {"a": 275.0}


def test_a_scheme_is_told_what_each_job_has_had_and_truly_needs() -> None:
    scheme = Scripted({"a": 2}, {"a": 2}, {"a": 4})
    simulate([job("a", 10.0, 1_000.0, 2)], scheme, Cluster(1, 4), Timing(100.0, switch_s=20.0))
    first, second, third, fourth = (told for (told,) in scheme.seen[:4])
    assert (first.waited_s, first.running_s, first.gpus, first.held_s) == (90.0, 0.0, 0, 0.0)
    assert first.remaining_s == first.total_s == {1: 1_000.0, 2: 500.0, 4: 250.0}
    assert (second.running_s, second.attained_gpu_s, second.gpus, second.held_s) == (100.0, 200.0, 2, 100.0)
    assert second.remaining_s == {1: 840.0, 2: 420.0, 4: 210.0}
    assert (third.held_s, third.restarts) == (200.0, 0)
    assert (fourth.gpus, fourth.held_s, fourth.restarts, fourth.attained_gpu_s) == (4, 100.0, 1, 800.0)


def test_a_size_that_is_no_faster_is_not_offered() -> None:
    scheme = Scripted({"a": 1})
    slow_pair = {(1,): 1.0, (2,): 1.0, (4,): 0.9}
    simulate([job("a", 0.0, 10.0, step_s=slow_pair)], scheme, Cluster(1, 4), Timing(60.0))
    assert list(scheme.seen[0][0].remaining_s) == [1, 4]


def test_jobs_are_placed_on_the_fullest_node_with_room() -> None:
    # b and c go beside a, and the second node stays whole for d.
    jobs = [job("a", 0.0, 100.0), job("b", 0.0, 100.0), job("c", 0.0, 50.0, 2), job("d", 0.0, 400.0, 4)]
    scheme = Scripted({"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 1, "c": 2, "d": 4})
    outcome = simulate(jobs, scheme, Cluster(2, 4), Timing(10.0))
    assert ends(outcome)["d"] == 110.0


def test_a_job_that_is_spread_over_nodes_is_as_slow_as_it_is_there() -> None:
    # When d starts, a and b hold two GPUs on each node.
    jobs = [
        job("a", 0.0, 1_000.0, 2),
        job("b", 0.0, 20.0, 2),
        job("c", 0.0, 1_000.0, 2),
        job("d", 0.0, 100.0, 4),
    ]
    scheme = Scripted({"a": 2, "b": 2, "c": 2}, {"a": 2, "c": 2, "d": 4})
    outcome = simulate(jobs, scheme, Cluster(2, 4), Timing(20.0))
    assert ends(outcome)["d"] == 60.0


def test_a_placement_that_was_not_measured_is_refused() -> None:
    # When c is over, there is one idle GPU on each node.
    jobs = [job("a", 0.0, 90.0), job("c", 0.0, 10.0), job("e", 0.0, 90.0), job("b", 0.0, 9.0, 2, {(2,): 1.0})]
    scheme = Scripted({"a": 1, "c": 1, "e": 1}, {"a": 1, "e": 1, "b": 2})
    with pytest.raises(ValueError, match=r"'b' has no step time on nodes with \(1, 1\) GPUs"):
        simulate(jobs, scheme, Cluster(2, 2), Timing(10.0))


@pytest.mark.parametrize(
    ("granted", "message"),
    [
        ({"a": 4, "b": 4}, "8 GPUs are given, of 4"),
        ({"a": 3}, r"3 GPUs are given to 'a', which may have one of \[1, 2, 4\]"),
        ({}, "2 jobs are left waiting, and all is idle"),
    ],
)
def test_what_a_scheme_may_not_do_is_refused(granted: dict[str, int], message: str) -> None:
    jobs = [job("a", 0.0, 10.0), job("b", 0.0, 10.0)]
    with pytest.raises(ValueError, match=message):
        simulate(jobs, Scripted(granted), Cluster(1, 4), Timing(60.0))


def test_of_a_hundred_jobs_the_tail_leaves_out_the_slowest() -> None:
    jobs = [job(str(number), 0.0, float(number)) for number in range(1, 101)]
    outcome = simulate(jobs, Scripted({str(n): 1 for n in range(1, 101)}), Cluster(25, 4), Timing(1e6))
    assert (outcome.tail_s, outcome.makespan_s) == (99.0, 100.0)


@st.composite
def workloads(draw: st.DrawFn) -> list[FluidJob]:
    return [
        job(
            f"job-{number}",
            draw(st.floats(0.0, 2_000.0)),
            draw(st.floats(1.0, 3_000.0)),
            draw(st.sampled_from([1, 2, 4])),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


def made(name: str, interval_s: float) -> Scheme:
    return RIVALS[name].make(interval_s)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(RIVALS))
@given(jobs=workloads(), eager=st.booleans(), switch_s=st.sampled_from([0.0, 7.0, 200.0]))
@settings(deadline=None, max_examples=examples(100))
def test_all_jobs_end_and_none_sooner_than_undisturbed(
    name: str, jobs: list[FluidJob], eager: bool, switch_s: float
) -> None:
    timing = Timing(50.0, eager, switch_s)
    outcome = simulate(jobs, made(name, 50.0), Cluster(2, 4), timing)
    assert simulate(jobs, made(name, 50.0), Cluster(2, 4), timing) == outcome
    assert sorted(ends(outcome)) == sorted(each.job_id for each in jobs)
    for each in outcome.finished:
        fastest_s = min(each.total_s.values()) + switch_s
        assert each.finished_s - each.submitted_s >= fastest_s * (1 - 1e-9)
