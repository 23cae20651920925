"""SRTF and Tiresias: who is served first, each at the size that was asked for."""

from solvers.merging.rival_schemes import ShortestRemainingTimeFirst, Tiresias
from tests.support.contenders import NOW_S, contender


def test_shortest_is_served_and_unfit_pass() -> None:
    jobs = [
        contender("long", 0, {1: 900.0}),
        contender("wide", 1, {8: 500.0}),
        contender("short", 2, {2: 100.0}),
    ]
    assert ShortestRemainingTimeFirst().allocate(jobs, 8, NOW_S) == {"short": 2, "long": 1}


def test_shorter_job_preempts_running_one() -> None:
    jobs = [contender("runs", 0, {4: 900.0}, gpus=4), contender("comes", 1, {4: 899.0})]
    assert ShortestRemainingTimeFirst().allocate(jobs, 4, NOW_S) == {"comes": 4}


def test_equal_jobs_are_served_by_arrival() -> None:
    jobs = [contender("b", 0, {4: 900.0}), contender("a", 1, {4: 900.0})]
    assert ShortestRemainingTimeFirst().allocate(jobs, 4, NOW_S) == {"b": 4}


def test_remaining_time_uses_requested_size() -> None:
    scales = contender("scales", 0, {1: 900.0, 4: 300.0}, asked_gpus=4)
    stays = contender("stays", 1, {1: 400.0}, asked_gpus=1)
    assert ShortestRemainingTimeFirst().allocate([scales, stays], 4, NOW_S) == {"scales": 4}
    asks_less = scales._replace(asked_gpus=1)
    assert ShortestRemainingTimeFirst().allocate([asks_less, stays], 1, NOW_S) == {"stays": 1}


def test_job_below_threshold_precedes_earlier_one() -> None:
    jobs = [
        contender("demoted", 0, {4: 100.0}, attained_gpu_s=3_600.0, gpus=4),
        contender("nearly", 1, {4: 900.0}, attained_gpu_s=3_599.0),
    ]
    assert Tiresias().allocate(jobs, 4, NOW_S) == {"nearly": 4}


def test_queue_keeps_order_of_arrival() -> None:
    jobs = [
        contender("first", 0, {4: 900.0}, attained_gpu_s=3_000.0),
        contender("second", 1, {4: 100.0}, attained_gpu_s=10.0),
    ]
    assert Tiresias().allocate(jobs, 4, NOW_S) == {"first": 4}
    assert Tiresias(thresholds_gpu_s=(1_000.0, 5_000.0)).allocate(jobs, 4, NOW_S) == {"second": 4}


def test_gpus_and_time_both_count_as_service() -> None:
    wide = contender("wide", 0, {8: 900.0}, running_s=500.0, attained_gpu_s=4_000.0)
    thin = contender("thin", 1, {1: 900.0}, running_s=3_500.0, attained_gpu_s=3_500.0)
    tiresias = Tiresias()
    assert (tiresias.queue_of(wide), tiresias.queue_of(thin)) == (1, 0)


def test_long_waiting_job_is_promoted_temporarily() -> None:
    starved = contender("a", 0, {4: 100.0}, attained_gpu_s=9_000.0, running_s=2_000.0, waited_s=8_000.0)
    assert Tiresias(promote_knob=4.0).queue_of(starved) == 0
    assert Tiresias(promote_knob=4.1).queue_of(starved) == 1
    assert Tiresias().queue_of(starved) == 1
    assert Tiresias(promote_knob=4.0).queue_of(starved._replace(running_s=2_001.0)) == 1
